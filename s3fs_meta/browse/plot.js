// The plot of the time line: dragging, keyboard control, and the description of the chosen bar.
// Without this script, the links next to the plot and the table below it do the same.
"use strict";
(() => {
  const plot = document.getElementById("plot");
  const svg = plot && plot.querySelector("svg");
  const bars = svg ? [...svg.querySelectorAll(".bar")] : [];
  if (!bars.length) return;

  const WIDTH = 1000;
  const DRAGGED_MIN = 8; // a shorter movement of the pointer is a click
  const band = svg.querySelector(".band");
  const described = document.getElementById("plot-now");
  const wider = document.querySelector("[data-move=Wider]");
  let chosen = bars.length - 1;
  let begin = null;

  const middle = (bar) => Number(bar.getAttribute("x")) + Number(bar.getAttribute("width")) / 2;
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    return WIDTH * Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  const part = (first, last) => {
    location.href = `${plot.dataset.root}/?first=${first}&last=${last}`;
  };
  const files = (bar) => `${plot.dataset.root}/at/${bar.dataset.last}/`;

  const choose = (index) => {
    bars[chosen].classList.remove("chosen");
    chosen = Math.min(Math.max(index, 0), bars.length - 1);
    bars[chosen].classList.add("chosen");
    const link = document.createElement("a");
    link.href = files(bars[chosen]);
    link.textContent = "show the files";
    described.replaceChildren(`${bars[chosen].dataset.label}: `, link);
  };
  const nearest = (x) => {
    const distances = bars.map((bar) => Math.abs(middle(bar) - x));
    return distances.indexOf(Math.min(...distances));
  };
  const within = (from, to) => {
    const found = bars.filter((bar) => from <= middle(bar) && middle(bar) <= to);
    if (found.length) part(found[0].dataset.first, found[found.length - 1].dataset.last);
  };

  svg.addEventListener("pointerdown", (event) => {
    begin = at(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (begin === null) return;
    const end = at(event);
    band.setAttribute("x", Math.min(begin, end));
    band.setAttribute("width", Math.abs(end - begin));
  });
  svg.addEventListener("pointercancel", () => {
    begin = null;
    band.setAttribute("width", 0);
  });
  svg.addEventListener("pointerup", (event) => {
    if (begin === null) return;
    const [from, to] = [begin, at(event)].sort((one, other) => one - other);
    begin = null;
    band.setAttribute("width", 0);
    if (to - from < DRAGGED_MIN) choose(nearest(to));
    else within(from, to);
  });

  const keys = {
    ArrowLeft: () => choose(chosen - 1),
    ArrowRight: () => choose(chosen + 1),
    Home: () => choose(0),
    End: () => choose(bars.length - 1),
    Enter: () => { location.href = files(bars[chosen]); },
    "+": () => part(bars[chosen].dataset.first, bars[chosen].dataset.last),
    "-": () => { if (wider) location.href = wider.href; },
  };
  plot.addEventListener("keydown", (event) => {
    if (event.target !== plot || event.ctrlKey || event.altKey || event.metaKey) return;
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  plot.tabIndex = 0;
  document.getElementById("plot-help").hidden = false;
})();
