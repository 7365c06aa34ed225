// draws the figures in the colours of the theme, and again when the theme changes
(() => {
  const figures = document.querySelectorAll("[data-figure]");

  const resolve = (node, style) => {
    if (typeof node === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(node);
      return name ? style.getPropertyValue(name[1]).trim() : node;
    }
    if (Array.isArray(node)) return node.map((item) => resolve(item, style));
    if (node && typeof node === "object") {
      return Object.fromEntries(Object.entries(node).map(([key, item]) => [key, resolve(item, style)]));
    }
    return node;
  };

  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    for (const place of figures) {
      const spec = JSON.parse(document.getElementById(place.dataset.figure).textContent);
      const { data, layout } = resolve(spec, style);
      Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
    }
  };

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent.trim());
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  }
})();
