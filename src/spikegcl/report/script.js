"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");

  // Text only: ids come from users.
  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const above = event.clientY - box.height - 14;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above > 8 ? above : event.clientY + 18) + "px";
  };
  const hide = () => { tip.hidden = true; };
  const on = (element, names, action) => names.forEach((name) => element.addEventListener(name, action));

  document.querySelectorAll("[data-tip]").forEach((hit) => {
    on(hit, ["pointerenter", "pointerdown"], (event) => show(hit.dataset.tip, event));
    on(hit, ["pointerleave"], hide);
  });

  const describe = (id, label) => (label in data.classes ? `${id} · ${data.classes[label]}` : id);
  const position = (svg, event) =>
    new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());

  const map = document.querySelector('[data-figure="map"]');
  const cursor = document.getElementById("cursor");
  let chosen = null;
  on(map, ["pointermove", "pointerdown"], (event) => {
    const at = position(map, event);
    let best = -1, least = 14 * 14;
    data.map.at.forEach(([x, y], index) => {
      const far = (x - at.x) ** 2 + (y - at.y) ** 2;
      if (far < least && (chosen === null || data.map.label[index] === chosen)) { best = index; least = far; }
    });
    if (best < 0) { cursor.setAttribute("cx", -20); hide(); return; }
    cursor.setAttribute("cx", data.map.at[best][0]);
    cursor.setAttribute("cy", data.map.at[best][1]);
    show(describe(data.map.id[best], data.map.label[best]), event);
  });
  on(map, ["pointerleave"], () => { cursor.setAttribute("cx", -20); hide(); });

  const buttons = [...document.querySelectorAll("button[data-class]")];
  buttons.forEach((button) => button.addEventListener("click", () => {
    const label = Number(button.dataset.class);
    chosen = chosen === label ? null : label;
    buttons.forEach((other) => other.setAttribute("aria-pressed", Number(other.dataset.class) === chosen));
    map.querySelectorAll(".mark").forEach((path) =>
      path.classList.toggle("dim", chosen !== null && Number(path.dataset.class) !== chosen));
  }));

  const raster = document.getElementById("raster");
  on(raster, ["pointermove", "pointerdown"], (event) => {
    const at = position(raster, event), box = raster.viewBox.baseVal, top = Number(raster.dataset.top);
    const row = Math.floor((at.y - top) / (box.height - top) * data.raster.id.length);
    const bit = Math.floor(at.x / box.width * data.raster.columns);
    if (row < 0 || row >= data.raster.id.length || bit < 0 || bit >= data.raster.columns) { hide(); return; }
    const step = Math.floor(bit / data.raster.channels) + 1, channel = bit % data.raster.channels + 1;
    show(`${describe(data.raster.id[row], data.raster.label[row])} · step ${step}, channel ${channel}`, event);
  });
  on(raster, ["pointerleave"], hide);
  addEventListener("scroll", hide, { passive: true });
})();
