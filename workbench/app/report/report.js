const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const config = { displayModeBar: false, displaylogo: false, scrollZoom: false, responsive: true };

function draw(palette, width) {
  for (const [name, both] of Object.entries(figures)) {
    const { data, layout } = both[palette];
    Plotly.react(name, data, width ? { ...layout, width, autosize: false } : { ...layout, autosize: true }, config);
  }
}

const screen = () => draw(dark.matches ? "dark" : "light");
dark.addEventListener("change", screen);
addEventListener("beforeprint", () => draw("light", 980)); // paper is white; 0.7 of this, as report.css has it, is its width
addEventListener("afterprint", screen);
screen();
