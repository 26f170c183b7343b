// Labels of an axis that lie one over the other.
function overlaps() {
const found = [];
for (const figure of document.querySelectorAll('.figure')) {
  for (const axis of ['x', 'y']) {
    const ticks = [...figure.querySelectorAll('.' + axis + 'tick text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
    for (let i = 0; i < ticks.length; i++) for (let j = i + 1; j < ticks.length; j++) {
      const [a, b] = [ticks[i][1], ticks[j][1]];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 3) found.push(figure.id + ': ' + ticks[i][0] + ' over ' + ticks[j][0]);
    }
  }
}
return found;
}

// Titles of axes that lie over the labels of their ticks, or over those of a colour bar; and numbers that are broken.
function crossed() {
const found = [];
for (const figure of document.querySelectorAll('.figure')) {
  const labels = [...figure.querySelectorAll('.xtick text, .ytick text, .colorbar text')];
  for (const title of figure.querySelectorAll('.xtitle, .ytitle')) {
    const a = title.getBoundingClientRect();
    for (const label of labels) {
      const b = label.getBoundingClientRect();
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 0 && high > 0) found.push(figure.id + ': ' + title.textContent + ' over ' + label.textContent);
    }
    for (const bar of figure.querySelectorAll('.colorbar .cbfills')) {
      if (title.matches('.xtitle') && bar.getBoundingClientRect().top - a.bottom < 4) found.push(figure.id + ': ' + title.textContent + ' on the colour bar');
    }
  }
}
for (const value of document.querySelectorAll('.instant li b, .instant li small')) {
  if (value.getClientRects().length > 1 || value.getBoundingClientRect().height > 30) found.push('broken: ' + value.textContent);
}
return found;
}

// Text whose contrast is below the 4.5 of WCAG's level AA.
function faint() {
const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const linear = (c) => (c <= 10.31 ? c / 3294.6 : Math.pow((c / 255 + 0.055) / 1.055, 2.4));
const bright = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
function behind(node) {
  for (let e = node; e; e = e.parentElement) {
    const colour = parse(getComputedStyle(e).backgroundColor);
    if (colour.length === 3 || colour[3] > 0.99) return colour;
  }
  return [255, 255, 255];
}
const found = [];
for (const node of document.querySelectorAll('h1, h2, p, th, td, small, button, label, li, dt, dd, summary, caption, .figure text')) {
  if (!node.textContent.trim() || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const colour = parse(node.tagName === 'text' ? style.fill : style.color);
  const [a, b] = [bright(colour), bright(behind(node))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) found.push(node.tagName + ' "' + node.textContent.trim().slice(0, 40) + '": ' + ratio.toFixed(2));
}
return found;
}
