"""Suites and profiles on a terminal or in a pipe: words and numbers, a small curve for each river.

A curve is the logarithm of its values over depth, from its own least to its own largest (see
``depthgauge.sparkline``); ``×`` is where it is not finite.
"""

from depthgauge.report.profile_screen import print_profile, profile_line
from depthgauge.report.suite_screen import print_suite, suite_line

__all__ = ["print_profile", "print_suite", "profile_line", "suite_line"]
