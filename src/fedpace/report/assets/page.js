(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  // No tool bar: it covers the marks at the right edge, and one of its buttons leads to a server.
  const config = { responsive: true, displayModeBar: false };
  let view = "time";

  const current = (name) => (name === "metric" ? figures.metric[view] : figures[name]);

  // Text and grid take the page's colours, which follow the reader's screen.
  function themed(figure) {
    const style = getComputedStyle(document.documentElement);
    const [ink, line, card] = ["--ink", "--line", "--card"].map((name) => style.getPropertyValue(name).trim());
    const copy = structuredClone(figure);
    const layout = copy.layout;
    layout.font.color = ink;
    layout.hoverlabel = { bgcolor: card, bordercolor: line, font: { color: ink } };
    for (const axis of [layout.xaxis, layout.yaxis]) Object.assign(axis, { gridcolor: line, linecolor: line });
    for (const shape of layout.shapes || []) shape.line.color = ink;
    for (const trace of copy.data) if (trace.meta === "ink") trace.line.color = ink;
    return copy;
  }

  function draw(name) {
    const figure = themed(current(name));
    Plotly.react("figure-" + name, figure.data, figure.layout, config);
  }

  const drawAll = () => Object.keys(figures).forEach(draw);

  const buttons = [...document.querySelectorAll("[data-view]")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      view = button.dataset.view;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      draw("metric");
    });
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
