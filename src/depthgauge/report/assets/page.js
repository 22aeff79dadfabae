// Draws the figures of the page from the JSON beside them (see figure_data.py), each when it comes
// near the screen; wires their legends; follows the light, the dark and the printer.
(function () {
  "use strict";

  var DASHES = ["solid", "6px,4px", "2px,3px", "8px,3px,2px,3px", "12px,4px", "12px,3px,3px,3px"];
  var MARKS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star"];
  var COLOURS = 7;
  var GAP = 0.34; // of a panel's height, above each but the first: the label of the next
  var figures = [];

  function theme() {
    var style = getComputedStyle(document.documentElement);
    function read(name) { return style.getPropertyValue("--" + name).trim(); }
    var colours = [];
    for (var i = 0; i < COLOURS; i++) colours.push(read("c" + i));
    return {
      ink: read("ink"), muted: read("muted"), rule: read("rule"), raised: read("raised"),
      colours: colours
    };
  }

  // Plotly reads a small HTML in its texts: a name must be text.
  function plain(text) {
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function short(text, length) {
    var signs = Array.from(text);
    return plain(signs.length > length ? signs.slice(0, length - 1).join("") + "…" : text);
  }

  function faint(colour) {
    var n = parseInt(colour.slice(1), 16);
    return "rgba(" + (n >> 16) + "," + ((n >> 8) & 255) + "," + (n & 255) + ",0.16)";
  }

  function digits(value) {
    return Number(value.toPrecision(4)).toString();
  }

  function blocks(line) {
    if (line.x.length === line.middle.length) return line.x;
    return line.middle.map(function (_, i) { return line.x[0] + i; });
  }

  // The outline of a band, one closed piece between two gaps.
  function outline(x, low, high) {
    var xs = [], ys = [];
    for (var start = 0; start < x.length;) {
      if (low[start] === null) { start++; continue; }
      var stop = start;
      while (stop < x.length && low[stop] !== null) stop++;
      for (var i = start; i < stop; i++) { xs.push(x[i]); ys.push(high[i]); }
      for (var j = stop - 1; j >= start; j--) { xs.push(x[j]); ys.push(low[j]); }
      xs.push(null); ys.push(null);
      start = stop;
    }
    return [xs, ys];
  }

  // A point beside a gap has a mark, or a line of one point would not be seen at all.
  function sizes(middle) {
    return middle.map(function (value, i) {
      if (value === null) return 0;
      var before = i > 0 && middle[i - 1] === null;
      var after = i + 1 < middle.length && middle[i + 1] === null;
      return before || after || middle.length === 1 ? 9 : 0;
    });
  }

  function called(data, line) {
    var name = data.names[line.name];
    return data.depths.length > 1 ? name + ", depth " + data.depths[line.depth] : name;
  }

  function seen(hidden, of) {
    return !hidden.name[of.name] && !(of.depth !== undefined && hidden.depth[of.depth]);
  }

  function curveTraces(data, hidden, look) {
    var traces = [];
    data.panels.forEach(function (panel, p) {
      var axis = "y" + (p ? p + 1 : "");
      panel.lines.forEach(function (line) {
        var x = blocks(line), colour = look.colours[line.style[0] % COLOURS];
        var shared = {
          type: "scatter", xaxis: "x", yaxis: axis, meta: { name: line.name, depth: line.depth },
          name: plain(called(data, line)), visible: seen(hidden, line)
        };
        if (line.low) {
          var shape = outline(x, line.low, line.high);
          traces.push(Object.assign({}, shared, {
            x: shape[0], y: shape[1], mode: "lines", fill: "toself", fillcolor: faint(colour),
            line: { width: 0 }, hoverinfo: "skip"
          }));
        }
        // Depths are few: each has its mark. Of blocks, those beside a gap.
        var few = data.x === "depth", marks = sizes(line.middle), gaps = few || marks.some(Boolean);
        var marker = { size: few ? 7 : marks, symbol: few ? "circle" : "x", color: colour };
        var marked = gaps ? { marker: marker } : {};
        traces.push(Object.assign({}, shared, marked, {
          x: x, y: line.middle, mode: gaps ? "lines+markers" : "lines", connectgaps: false,
          line: { color: colour, width: 2, dash: DASHES[line.style[1] % DASHES.length] },
          customdata: line.middle.map(function (value, i) {
            if (value === null) return "";
            var spread = line.low ? " [" + digits(line.low[i]) + ", " + digits(line.high[i]) + "]" : "";
            return digits(value) + spread + ", n = " + line.seeds;
          }),
          hovertemplate: "%{fullData.name}<br>" + data.x + " %{x}: %{customdata}<extra></extra>"
        }));
      });
    });
    return traces;
  }

  function axisLook(look) {
    return {
      color: look.muted, gridcolor: look.rule, zerolinecolor: look.rule, linecolor: look.muted,
      tickfont: { color: look.muted }, automargin: true
    };
  }

  function base(look) {
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: look.ink, size: 12, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: {
        bgcolor: look.raised, bordercolor: look.muted, font: { color: look.ink }, align: "left",
        namelength: -1
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: look.muted, activecolor: look.ink },
      hovermode: "closest", showlegend: false, margin: { l: 56, r: 14, t: 30, b: 44 },
      // A finger on a figure scrolls the page.
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom"
    };
  }

  function curveLayout(data, look) {
    var layout = base(look), n = data.panels.length;
    var height = 1 / (n + GAP * (n - 1));
    layout.annotations = [];
    data.panels.forEach(function (panel, p) {
      var top = 1 - p * height * (1 + GAP);
      layout["yaxis" + (p ? p + 1 : "")] = Object.assign(axisLook(look), {
        domain: [Math.max(0, top - height), top], type: panel.log ? "log" : "linear",
        exponentformat: "power", zeroline: !panel.log, nticks: 6,
        rangemode: panel.unit === "share" ? "nonnegative" : "normal"
      });
      layout.annotations.push({
        text: "<b>" + plain(panel.label) + "</b>, " + plain(panel.unit), xref: "paper", yref: "paper",
        x: 0, y: top, xanchor: "left", yanchor: "bottom", yshift: 3, showarrow: false
      });
    });
    layout.xaxis = Object.assign(axisLook(look), {
      title: { text: data.x }, anchor: "y" + (n > 1 ? n : ""), zeroline: false, nticks: 8
    });
    if (data.x === "depth") {
      var depths = data.panels.flatMap(function (panel) { return panel.lines.flatMap(blocks); });
      depths = Array.from(new Set(depths));
      Object.assign(layout.xaxis, { type: "log", tickvals: depths, ticktext: depths.map(String) });
    }
    return layout;
  }

  function effectTraces(data, hidden, look) {
    return data.series.map(function (effects, s) {
      var colour = look.colours[s % COLOURS], n = data.series.length;
      var shift = n > 1 ? (s / (n - 1) - 0.5) * 0.6 : 0;
      return {
        type: "scatter", mode: "markers", meta: { name: s }, name: plain(data.names[s]),
        visible: seen(hidden, { name: s }),
        x: effects.map(function (e) { return e.value; }),
        y: effects.map(function (e) { return e.change + shift; }),
        error_x: {
          type: "data", symmetric: false, color: colour, thickness: 1.5, width: 4,
          array: effects.map(function (e) { return e.high - e.value; }),
          arrayminus: effects.map(function (e) { return e.value - e.low; })
        },
        marker: { color: colour, size: 9, symbol: MARKS[s % MARKS.length] },
        customdata: effects.map(function (e) {
          return plain(data.changes[e.change]) + "<br>" + plain(data.names[s]) + ": " +
            digits(e.value) + " " + plain(data.unit) + " [" + digits(e.low) + ", " + digits(e.high) + "]";
        }),
        hovertemplate: "%{customdata}<extra></extra>"
      };
    });
  }

  function effectLayout(data, look, width) {
    var layout = base(look);
    layout.xaxis = Object.assign(axisLook(look), {
      title: { text: "effect, " + plain(data.unit) }, zeroline: true, zerolinecolor: look.muted,
      zerolinewidth: 2
    });
    layout.yaxis = Object.assign(axisLook(look), {
      tickvals: data.changes.map(function (_, i) { return i; }),
      ticktext: data.changes.map(function (name) { return short(name, width < 500 ? 16 : 36); }),
      range: [data.changes.length - 0.5, -0.5], zeroline: false
    });
    return layout;
  }

  // Plotly's script is the most of this page: it is read when the page is shown and has time, or
  // the first figure is wanted.
  function ready() {
    if (window.Plotly) return;
    var script = document.createElement("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.head.appendChild(script);
  }

  function draw(figure) {
    ready();
    var look = theme(), data = figure.data, curves = data.kind === "curves";
    var traces = (curves ? curveTraces : effectTraces)(data, figure.hidden, look);
    var layout = curves ? curveLayout(data, look) : effectLayout(data, look, figure.plot.clientWidth);
    var config = {
      responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]],
      displayModeBar: figure.plot.clientWidth < 500 ? false : "hover"
    };
    figure.drawn = true;
    Plotly.react(figure.plot, traces, layout, config);
  }

  function show(figure, buttons, visible) {
    buttons.forEach(function (button) {
      figure.hidden[button.kind][button.number] = !visible;
      button.element.setAttribute("aria-pressed", String(visible));
    });
    if (!figure.drawn) return;
    var on = figure.plot.data.map(function (trace) { return seen(figure.hidden, trace.meta); });
    Plotly.restyle(figure.plot, { visible: on });
  }

  function wire(figure) {
    figure.buttons.forEach(function (button) {
      button.element.title = button.element.textContent;
      button.element.addEventListener("click", function () {
        show(figure, [button], Boolean(figure.hidden[button.kind][button.number]));
      });
    });
    figure.element.querySelector(".all").addEventListener("click", function () {
      show(figure, figure.buttons, true);
    });
    // Depths stay: what is pressed next is then seen at once.
    figure.element.querySelector(".none").addEventListener("click", function () {
      show(figure, figure.buttons.filter(function (b) { return b.kind === "name"; }), false);
    });
  }

  function redraw(everything) {
    figures.forEach(function (figure) { if (figure.drawn || everything) draw(figure); });
  }

  document.querySelectorAll("figure").forEach(function (element) {
    var data = JSON.parse(element.querySelector("script.data").textContent);
    var figure = {
      element: element, data: data, plot: element.querySelector(".plot"), drawn: false,
      hidden: { name: [], depth: [] },
      buttons: Array.from(element.querySelectorAll("button[aria-pressed]")).map(function (button) {
        var kind = button.hasAttribute("data-name") ? "name" : "depth";
        return { element: button, kind: kind, number: Number(button.getAttribute("data-" + kind)) };
      })
    };
    figures.push(figure);
    wire(figure);
  });

  var near = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) {
      if (!entry.isIntersecting) return;
      near.unobserve(entry.target);
      figures.forEach(function (figure) {
        if (figure.element === entry.target && !figure.drawn) draw(figure);
      });
    });
  }, { rootMargin: "400px" });
  figures.forEach(function (figure) { near.observe(figure.element); });

  addEventListener("load", function () {
    if (window.requestIdleCallback) requestIdleCallback(ready);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () { redraw(false); });
  // Paper is white, and shows what was never scrolled to.
  addEventListener("beforeprint", function () {
    document.documentElement.classList.add("light");
    document.querySelectorAll("details.long").forEach(function (long) {
      long.classList.toggle("folded", !long.open);
      long.open = true;
    });
    redraw(true);
  });
  addEventListener("afterprint", function () {
    document.documentElement.classList.remove("light");
    document.querySelectorAll("details.folded").forEach(function (long) { long.open = false; });
    redraw(false);
  });
})();
