"""Recipes: rules about block form and initialisation; each is written once, applied and audited."""
