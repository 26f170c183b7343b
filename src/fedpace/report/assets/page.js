(function () {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const data = read("data");
  // No tool bar: it covers the marks at the right edge, and one of its buttons leads to a server.
  const config = { responsive: true, displayModeBar: false };
  const narrow = window.matchMedia("(max-width: 600px)");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = { metric: "time", speed: "share" };
  const hidden = new Set();
  const drawn = new Set();
  const one = (id) => document.getElementById(id);
  const all = (selector) => [...document.querySelectorAll(selector)];
  // Values that stand below each other have as many decimals each, unless they are so small that all would be 0.
  const level = (value) => (Math.abs(value) >= 0.01 && Math.abs(value) < 100 ? value.toFixed(3) : number(value));
  const number = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });

  // -- figures ---------------------------------------------------------------------------------------------------

  function current(name) {
    if (name === "map") return cohortMap(one("map-scheme").value);
    if (!(name in views)) return figures[name];
    return figures[name][views[name]] || Object.values(figures[name])[0];
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Text and grid take the page's colours, which follow the reader's screen; narrow screens get fewer, shorter ticks.
  function themed(figure) {
    const [ink, line, card] = ["--ink", "--line", "--card"].map(colour);
    const copy = structuredClone(figure);
    const layout = copy.layout;
    layout.font.color = ink;
    layout.hoverlabel = { bgcolor: card, bordercolor: line, font: { color: ink }, align: "left" };
    for (const axis of [layout.xaxis, layout.yaxis]) Object.assign(axis, { gridcolor: line, linecolor: line });
    for (const shape of layout.shapes || []) shape.line.color = ink;
    for (const trace of copy.data) if (trace.meta === "ink") trace.line.color = ink;
    // Many bands over each other show nothing.
    const many = data.schemes.length - hidden.size > data.most_banded;
    const band = (trace) => trace.mode === "lines" && trace.line.width === 0;
    copy.data = copy.data.filter((trace) => !hidden.has(trace.legendgroup) && !(many && band(trace)));
    if (narrow.matches) {
      for (const t of copy.data) if (t.mode === "markers+text") t.mode = "markers";
      copy.data = copy.data.filter((t) => t.meta !== "label");
    }
    if (narrow.matches) {
      layout.font.size = 12;
      layout.margin = Object.assign({}, layout.margin, { l: 44, r: 8 });
      layout.xaxis.title = Object.assign({}, layout.xaxis.title, { font: { size: 12 } });
      layout.xaxis.tickangle = 0;
      if (layout.xaxis.type === "log") Object.assign(layout.xaxis, decades(copy.data));
      else if (!layout.xaxis.tickvals) Object.assign(layout.xaxis, { nticks: 5, tickformat: "~s" });
      if (layout.xaxis.dtick === 1 && layout.xaxis.type !== "log") layout.xaxis.dtick = 3;
      if (layout.yaxis.ticktext) layout.yaxis.ticktext = layout.yaxis.ticktext.map(shorter);
    }
    return copy;
  }

  // Whole decades only, and not more of them than fit: a label takes about 60 of 340 pixels.
  function decades(traces) {
    const values = traces.flatMap((trace) => trace.x).filter((value) => value > 0);
    if (!values.length) return {};
    const span = Math.log10(Math.max(...values) / Math.min(...values));
    if (span < 1.2) return { dtick: "D2", tickformat: "~s" };
    return { dtick: Math.max(1, Math.ceil(span / 4)), tickformat: "~s" };
  }

  function shorter(text) {
    const plain = new DOMParser().parseFromString(text, "text/html").documentElement.textContent;
    if (plain.length <= 16) return text;
    const cut = plain.slice(0, 15) + "\u2026";
    return cut.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function draw(name) {
    const figure = themed(current(name));
    drawn.add(name);
    Plotly.react("figure-" + name, figure.data, figure.layout, config);
  }

  const redraw = () => drawn.forEach(draw);

  // -- selected clients --------------------------------------------------------------------------------------------

  function cohortMap(label) {
    const map = data.maps[label];
    const height = map.rows.length;
    const width = Math.ceil(map.rounds / map.per_column);
    const z = Array.from({ length: height }, () => new Array(width).fill(null));
    const text = Array.from({ length: height }, () => new Array(width).fill(""));
    const lost = { x: [], y: [], text: [] };
    const at = (column) => column * map.per_column + 1;
    map.row.forEach((row, i) => {
      const column = map.column[i];
      const first = at(column);
      const last = Math.min(map.rounds, first + map.per_column - 1);
      const when = first === last ? "round " + first : "rounds " + first + " to " + last;
      const lines = [escaped(map.rows[row]), when];
      if (map.weight[i] || !map.failed[i]) {
        z[row][column] = map.weight[i];
        lines.push("weight " + number(map.weight[i]) + (map.per_column > 1 ? " per round" : ""));
      }
      if (map.why[i] >= 0) lines.push(escaped(map.reasons[map.why[i]]));
      if (map.failed[i]) {
        lost.x.push(first);
        lost.y.push(row);
        lost.text.push(lines.concat(map.failed[i] === 1 ? "1 task lost" : map.failed[i] + " tasks lost").join("<br>"));
      }
      text[row][column] = lines.join("<br>");
    });
    const light = colour("--page") === "#ffffff";
    const scale = light ? [[0, "#a9c7e8"], [1, "#0b2a52"]] : [[0, "#2f4d70"], [1, "#ffe08a"]];
    const bar = { title: { text: "weight" }, orientation: "h", y: -0.38, thickness: 8, outlinewidth: 0, nticks: narrow.matches ? 3 : 5, tickangle: 0, len: 0.6 };
    const steps = [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * (height - 1)));
    const ticks = [...new Set(steps)].filter((row) => map.ticks[row]);
    const layout = structuredClone(data.layout);
    layout.xaxis.title = { text: "round", standoff: 6 };
    Object.assign(layout.xaxis, { showgrid: false, type: "linear", dtick: null });
    layout.yaxis = {
      title: { text: ticks.length ? "clients by delay" : "clients, most often chosen first", standoff: 12 },
      automargin: true, zeroline: false, showgrid: false, range: [-0.5, height - 0.5],
      tickvals: ticks, ticktext: ticks.map((row) => map.ticks[row]),
    };
    const columns = Array.from({ length: width }, (_, column) => at(column));
    const hovertemplate = "%{text}<extra></extra>";
    return {
      layout,
      data: [
        { type: "heatmap", x: columns, z, text, hovertemplate, zmin: Math.min(0, ...map.weight), colorscale: scale, colorbar: bar, hoverongaps: false,
          xgap: width > 80 ? 0 : 1, ygap: height > 60 ? 0 : 1 },
        { type: "scatter", mode: "markers", x: lost.x, y: lost.y, text: lost.text, hovertemplate,
          marker: { symbol: "x-thin", size: 5, line: { width: 1.2, color: light ? "#b3261e" : "#ff8a80" } } },
      ],
    };
  }

  const escaped = (text) =>
    text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%/g, "&#37;").replace(/\$/g, "&#36;");

  // -- the metric at a time ---------------------------------------------------------------------------

  const overTime = figures.metric && figures.metric.time ? figures.metric.time.data : [];
  const lines = overTime.filter((trace) => trace.meta === "line");
  const ends = lines.map((trace) => trace.x[trace.x.length - 1]);
  const firsts = lines.flatMap((trace) => trace.x.filter((x) => x > 0).slice(0, 1));
  const longest = Math.max(...ends, 0);
  const shortest = firsts.length ? Math.min(...firsts) : longest;

  const band = (group) => overTime.filter((t) => t.legendgroup === group && t.line && t.line.width === 0);

  function valueAt(trace, seconds) {
    let low = -1;
    let high = trace.x.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (trace.x[middle] <= seconds) low = middle;
      else high = middle;
    }
    return trace.y[Math.max(low, 0)];
  }

  // The slider is logarithmic: what matters happens early.
  const toTime = (place) => shortest * Math.pow(Math.max(longest / shortest, 1), place / 1000);
  const toPlace = (seconds) =>
    (1000 * Math.log(Math.max(seconds, shortest) / shortest)) / Math.log(Math.max(longest / shortest, 1.0001));

  function tell(seconds) {
    const list = one("at-values");
    list.textContent = "";
    for (const scheme of data.schemes) {
      const line = lines.find((trace) => trace.name === scheme.group);
      if (!line || hidden.has(scheme.group)) continue;
      const entry = document.createElement("li");
      const swatch = document.createElement("span");
      swatch.className = "swatch " + scheme.dash;
      swatch.style.borderColor = scheme.colour;
      const name = document.createElement("span");
      const value = document.createElement("b");
      name.textContent = scheme.label;
      value.textContent = level(valueAt(line, seconds));
      entry.append(swatch, name, value);
      const [least, most] = band(scheme.group);
      if (least && most && most.fill) {
        const range = document.createElement("small");
        range.textContent = level(valueAt(least, seconds)) + "\u2013" + level(valueAt(most, seconds));
        entry.append(range);
      }
      list.append(entry);
    }
  }

  function startInstant() {
    if (!lines.length || !(longest > 0)) {
      all(".instant").forEach((part) => part.remove());
      return;
    }
    const [field, range] = [one("at"), one("at-range")];
    field.addEventListener("input", () => {
      const seconds = Number(field.value);
      if (!Number.isFinite(seconds) || field.value === "") return;
      range.value = toPlace(seconds);
      tell(seconds);
    });
    range.addEventListener("input", () => {
      field.value = Number(toTime(Number(range.value)).toPrecision(3));
      tell(Number(field.value));
    });
    field.value = Number(Math.min(...ends).toPrecision(3));
    range.value = toPlace(Number(field.value));
    tell(Number(field.value));
  }

  // -- controls --------------------------------------------------------------------------------------------------

  for (const button of all("[data-view]")) {
    button.addEventListener("click", () => {
      const name = button.dataset.figure;
      views[name] = button.dataset.view;
      for (const other of all("[data-figure='" + name + "']")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      draw(name);
    });
  }

  const chips = all("[data-scheme]");
  function showSchemes() {
    chips.forEach((chip, i) => chip.setAttribute("aria-pressed", String(!hidden.has(data.schemes[i].group))));
    redraw();
    if (one("at") && one("at").value !== "") tell(Number(one("at").value));
  }
  chips.forEach((chip, i) =>
    chip.addEventListener("click", () => {
      const group = data.schemes[i].group;
      if (!hidden.delete(group)) hidden.add(group);
      showSchemes();
    })
  );
  if (one("all-schemes")) {
    one("all-schemes").addEventListener("click", () => {
      hidden.clear();
      showSchemes();
    });
  }
  // Click on a heading: sort by the column; click again: the other way round. Cells without a number stay last.
  for (const table of all("table.sortable")) {
    const heads = [...table.querySelectorAll("thead th")];
    heads.forEach((head, place) =>
      head.querySelector("button").addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const body = table.querySelector("tbody");
        const key = (row) => {
          const cell = row.children[place];
          if (place === 0) return cell.textContent;
          return "order" in cell.dataset ? Number(cell.dataset.order) : null;
        };
        const rows = [...body.children].map((row) => [key(row), row]);
        rows.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          return sign * (place === 0 ? a.localeCompare(b) : a - b);
        });
        body.append(...rows.map(([, row]) => row));
      })
    );
  }

  if (one("map-scheme")) one("map-scheme").addEventListener("change", () => draw("map"));

  dark.addEventListener("change", redraw);
  narrow.addEventListener("change", redraw);

  // Paper is white, and has no room to scroll to: everything is drawn, and in light colours.
  window.addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    names.forEach(draw);
  });
  window.addEventListener("afterprint", () => {
    delete document.documentElement.dataset.theme;
    redraw();
  });

  // The first figure is drawn at once, the others when they come near the screen: the page is there sooner.
  const names = all(".figure").map((part) => part.id.slice("figure-".length));
  startInstant();
  if (names.length) draw(names[0]);
  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        near.unobserve(entry.target);
        const name = entry.target.id.slice("figure-".length);
        if (!drawn.has(name)) draw(name);
      }
    },
    { rootMargin: "300px" }
  );
  all(".figure").forEach((part) => near.observe(part));
})();
