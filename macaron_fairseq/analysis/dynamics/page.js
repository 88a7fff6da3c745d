// The page of `macaron-fairseq dynamics`, with values to point at. Without it the pictures stand
// as matplotlib drew them. It reads the JSON that stands in the page, and nothing else.

function drawAll() {
  if (document.body.clientWidth < 100) return; // the window is closing, or hidden
  for (const draw of redraw) draw();
}

document.documentElement.classList.add("scripted");
const controls = document.getElementById("controls");
controls.hidden = false;
controls.addEventListener("submit", (event) => event.preventDefault());
function readControls() {
  for (const input of controls.querySelectorAll("[name=model]")) {
    if (input.checked) shown.add(Number(input.value));
    else shown.delete(Number(input.value));
  }
  const view = controls.querySelector("[name=view]:checked");
  isDifference = Boolean(view) && view.value === "difference";
}

controls.addEventListener("change", () => {
  readControls();
  drawAll();
});
let base = null; // the first model's distributions, of the side that is drawn
for (const script of document.querySelectorAll("figure > script")) {
  const [figure, data] = [script.parentNode, read(script)];
  if (data.kind === "lines") lineChart(figure, data);
  else {
    if (data.series === 0) base = data;
    distributions(figure, data, base);
  }
}
singleSentences();
readControls(); // a page that is loaded again may have kept them
drawAll();
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (!window.innerWidth || window.innerWidth === width) return;
  width = window.innerWidth;
  window.requestAnimationFrame(drawAll);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
