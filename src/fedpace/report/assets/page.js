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
  let base = data.schemes.find((scheme) => scheme.label === data.baseline) || {};
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
    if (name === "metric" && views.metric === "speed-up") return speedUps();
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
    // The scheme that others are compared with is the heavy line.
    for (const trace of copy.data) if (trace.meta === "line" && trace.legendgroup === base.group) trace.line.width = 4;
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
      else if (!layout.xaxis.tickvals) Object.assign(layout.xaxis, { nticks: 5, tickformat: Math.max(...copy.data.flatMap((t) => t.x)) < 10 ? "~g" : "~s" });
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

  // Two lines for a long name, parted at a hyphen or a space if there is one.
  function shorter(text) {
    const plain = new DOMParser().parseFromString(text, "text/html").documentElement.textContent;
    if (plain.length <= 16) return text;
    const at = Math.max(plain.lastIndexOf("-", 15), plain.lastIndexOf(" ", 15)) + 1 || 15;
    const rest = plain.slice(at);
    const lines = [plain.slice(0, at), rest.length <= 16 ? rest : rest.slice(0, 15) + "\u2026"];
    return lines.map((line) => line.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")).join("<br>");
  }

  function draw(name) {
    const figure = themed(current(name));
    drawn.add(name);
    Plotly.react("figure-" + name, figure.data, figure.layout, config);
  }

  const redraw = () => drawn.forEach(draw);

  // -- compared with a scheme ------------------------------------------------------------------------------------

  // As `fedpace.report.numbers.digits`: three significant digits, thousands with commas.
  function digits(value) {
    if (value === 0) return "0";
    if (Math.abs(value) < 1e-4) return value.toExponential(2);
    const rounded = Math.abs(value) < 1000 ? Number(value.toPrecision(3)) : value;
    const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(rounded))));
    return rounded.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  }

  // As `geometric_estimate`: the mean of the ratios seed by seed, and its 95 % interval.
  function speedUp(scheme) {
    const ratios = Object.keys(scheme.seconds)
      .filter((seed) => scheme.seconds[seed] > 0 && base.seconds[seed] > 0)
      .map((seed) => Math.log(base.seconds[seed] / scheme.seconds[seed]));
    const count = ratios.length;
    if (!count) return null;
    const mean = ratios.reduce((sum, ratio) => sum + ratio, 0) / count;
    const quantile = data.quantiles[count];
    if (!quantile) return { mean: Math.exp(mean), count };
    const spread = Math.sqrt(ratios.reduce((sum, ratio) => sum + (ratio - mean) ** 2, 0) / (count - 1));
    const half = (quantile * spread) / Math.sqrt(count);
    return { mean: Math.exp(mean), low: Math.exp(mean - half), high: Math.exp(mean + half), count };
  }

  function compareWith(label) {
    base = data.schemes.find((scheme) => scheme.label === label);
    for (const part of all(".base")) part.textContent = label;
    const head = document.querySelector("[data-column='Speed-up']");
    if (!head) return;
    const table = head.closest("table");
    const place = [...head.parentNode.children].indexOf(head);
    for (const row of table.querySelectorAll("tbody tr")) {
      const scheme = data.schemes.find((each) => each.label === row.dataset.row);
      const cell = row.children[place];
      const found = speedUp(scheme);
      const text = document.createElement("span");
      cell.replaceChildren(text);
      delete cell.dataset.order;
      text.textContent = found === null ? "\u2013" : (scheme === base ? "1" : digits(found.mean)) + "\u00d7";
      if (found === null) continue;
      cell.dataset.order = scheme === base ? 1 : found.mean;
      const notes = [];
      if (found.low !== undefined && scheme !== base) notes.push(digits(found.low) + "\u2013" + digits(found.high));
      const runs = Object.keys(scheme.seconds).length;
      if (found.count < runs && scheme !== base) notes.push(found.count + " of " + runs + " seeds");
      if (notes.length) {
        const small = document.createElement("small");
        small.textContent = notes.join(", ");
        text.append(small);
      }
    }
    sortAgain(table);
    if (drawn.has("metric")) draw("metric");
  }

  // How many times as fast as the baseline each scheme comes to each value of the metric, on the mean curves.
  function speedUps() {
    const layout = structuredClone(figures.metric.time.layout);
    const best = (values) => values.reduce((kept, value) => (data.up ? Math.max(kept, value) : Math.min(kept, value)));
    const of = (scheme) => lines.find((trace) => trace.legendgroup === scheme.group);
    const start = of(base) ? of(base).y[0] : 0;
    const end = of(base) ? best(of(base).y) : 0;
    const levels = Array.from({ length: 101 }, (_, i) => start + ((end - start) * i) / 100).slice(1);
    const when = (trace, level) => {
      const place = trace.y.findIndex((value) => (data.up ? value >= level : value <= level));
      return place < 0 ? null : trace.x[place];
    };
    const traces = [];
    const named = [];
    for (const scheme of data.schemes) {
      const line = of(scheme);
      if (!line || !of(base)) continue;
      const points = levels
        .map((level) => [level, when(of(base), level), when(line, level)])
        .filter(([, slow, fast]) => slow > 0 && fast > 0)
        .map(([level, slow, fast]) => [level, slow / fast]);
      const [x, y] = [points.map((point) => point[0]), points.map((point) => point[1])];
      const common = { type: "scatter", legendgroup: scheme.group, x, y, showlegend: false };
      const style = { color: scheme.colour, dash: scheme.dash, width: 2.2, shape: "hv" };
      const hovertemplate = "%{y:.3~r} times as fast to %{x:.3~r}<extra>" + scheme.group + "</extra>";
      traces.push({ ...common, mode: "lines", meta: "line", name: scheme.group, line: style, hovertemplate });
      if (x.length && !hidden.has(scheme.group)) named.push({ ...common, x: x.slice(-1), text: [scheme.group], at: Math.log(y[y.length - 1]) });
    }
    // Names at the ends of the lines, moved apart where lines end close to each other.
    named.sort((a, b) => b.at - a.at);
    const heights = traces.flatMap((trace) => trace.y).map(Math.log);
    const apart = 0.055 * (Math.max(...heights) - Math.min(...heights));
    named.forEach((label, i) => {
      if (i) label.at = Math.min(label.at, named[i - 1].at - apart);
      const place = { mode: "text", textposition: "middle right", hoverinfo: "skip", cliponaxis: false, meta: "label" };
      traces.push({ ...label, ...place, x: [end], y: [Math.exp(label.at)] });
    });
    layout.xaxis.title.text = escaped(data.metric);
    Object.assign(layout.xaxis, { type: "linear", rangemode: "normal", tickformat: "~g" });
    delete layout.xaxis.dtick;
    Object.assign(layout.yaxis, { type: "log", tickformat: ",.10~g", dtick: "D2", rangemode: "normal" });
    layout.yaxis.title.text = "times as fast as " + escaped(base.label);
    layout.shapes = [];
    layout.annotations = [];
    if (!narrow.matches) layout.margin.r = 130;
    return { data: traces, layout };
  }

  // -- which clients took part --------------------------------------------------------------------------------------------

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
      const when = first === last ? "step " + first : "steps " + first + " to " + last;
      const lines = [escaped(map.rows[row]), when];
      if (map.weight[i] || !map.failed[i]) {
        z[row][column] = map.weight[i];
        lines.push("weight " + number(map.weight[i]) + (map.per_column > 1 ? " per step" : ""));
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
    layout.xaxis.title = { text: "step of the server", standoff: 6 };
    Object.assign(layout.xaxis, { showgrid: false, type: "linear", dtick: null });
    layout.yaxis = {
      title: { text: ticks.length ? "clients by seconds per round" : "clients, most often chosen first", standoff: 12 },
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
    // Rounded up, because a curve may rise at the very last instant.
    const end = Math.min(...ends);
    const unit = Math.pow(10, Math.floor(Math.log10(end)) - 2);
    field.value = Number((Math.ceil(end / unit) * unit).toPrecision(3));
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

  const chips = all("button[data-scheme]");
  function showSchemes() {
    chips.forEach((chip, i) => chip.setAttribute("aria-pressed", String(!hidden.has(data.schemes[i].group))));
    const off = new Set(data.schemes.filter((scheme) => hidden.has(scheme.group)).map((scheme) => scheme.label));
    for (const row of all("tr[data-row]")) row.classList.toggle("off", off.has(row.dataset.row));
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
  const only = (wanted) => {
    hidden.clear();
    for (const scheme of data.schemes) if (!wanted(scheme)) hidden.add(scheme.group);
    showSchemes();
  };
  chips.forEach((chip, i) => chip.addEventListener("dblclick", () => only((scheme) => scheme === data.schemes[i])));
  if (one("filter")) {
    one("filter").addEventListener("input", () => {
      const words = one("filter").value.toLowerCase().split(/\s+/);
      only((scheme) => words.some((word) => scheme.label.toLowerCase().includes(word)));
    });
  }
  if (one("baseline")) one("baseline").addEventListener("change", () => compareWith(one("baseline").value));
  if (one("all-schemes")) {
    one("all-schemes").addEventListener("click", () => {
      if (one("filter")) one("filter").value = "";
      only(() => true);
    });
  }
  // Click on a heading: sort by the column; click again: the other way round. Cells without a number stay last.
  function sortAgain(table) {
    const heads = [...table.querySelectorAll("thead th")];
    const place = heads.findIndex((head) => head.getAttribute("aria-sort") !== "none");
    if (place < 0) return;
    const sign = heads[place].getAttribute("aria-sort") === "ascending" ? 1 : -1;
    const key = (row) => {
      const cell = row.children[place];
      if (place === 0) return cell.textContent;
      return "order" in cell.dataset ? Number(cell.dataset.order) : null;
    };
    const body = table.querySelector("tbody");
    const rows = [...body.children].map((row) => [key(row), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (place === 0 ? a.localeCompare(b) : a - b);
    });
    body.append(...rows.map(([, row]) => row));
  }
  for (const table of all("table.sortable")) {
    const heads = [...table.querySelectorAll("thead th")];
    heads.forEach((head) =>
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sortAgain(table);
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
