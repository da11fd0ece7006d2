const slider = document.getElementById("slider"), moment = document.getElementById("moment");
function cell(row, text, tag = "td", numeric = false) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (numeric) made.className = "n";
  row.append(made);
}
function show() {
  const [step, total, what, place, kinds, tensors] = data.moments[slider.value];
  const shown = document.createElement("div"), head = document.createElement("p");
  head.textContent = `step ${step} of ${data.steps}: ${what}${place ? " at " + place : ""}: ${bytes(total)} (${total} bytes)`;
  slider.setAttribute("aria-valuetext", `step ${step}, ${bytes(total)}`);
  const table = document.createElement("table");
  data.kinds.forEach((kind, i) => {
    if (!kinds[i]) return;
    const row = table.insertRow();
    cell(row, kind, "th"); cell(row, bytes(kinds[i]), "td", true);
    cell(row, tensors.filter((t) => t[1] === i).map((t) => `${t[0]} ${bytes(t[2])}`).join(", "));
  });
  shown.append(head, table);
  moment.replaceChildren(shown);
}
function bytes(count) {
  if (count < 1024) return `${count} B`;
  const power = Math.min(Math.floor(Math.log2(count) / 10), 4);
  const size = count / 1024 ** power;
  return `${size.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0)} ${"KMGT"[power - 1]}iB`;
}
slider.addEventListener("input", show);
show();
