const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
function config() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim(), line = style.getPropertyValue("--line").trim();
  return {
    background: null, font: "system-ui, sans-serif", view: { stroke: null },
    axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: "normal" },
    legend: { labelColor: ink, titleColor: ink, labelLimit: 0 }, text: { color: ink },
  };
}
async function draw() {
  for (const [name, spec] of Object.entries(data.charts)) {
    const options = { actions: false, renderer: "canvas", config: config(), tooltip: { theme: dark.matches ? "dark" : "light" } };
    await window.vegaEmbed("#chart-" + name, spec, options);
  }
  document.body.dataset.drawn = "yes";
}
dark.addEventListener("change", draw);
draw().catch((error) => { document.body.dataset.drawn = "failed"; console.error(error); });
