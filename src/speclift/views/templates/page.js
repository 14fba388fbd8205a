"use strict";
for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", async () => {
  const code = button.parentElement.querySelector("code");
  try { await navigator.clipboard.writeText(code.textContent); button.textContent = "copied"; }
  catch { getSelection().selectAllChildren(code); button.textContent = "selected"; }
});

// The figures of a mark, under the pointer.
const tip = document.getElementById("tip");
document.addEventListener("pointerover", event => {
  const mark = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const left = Math.min(event.clientX + 12, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18, isLow = below + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${isLow ? event.clientY - tip.offsetHeight - 10 : below}px`;
});
document.addEventListener("keydown", event => { if (event.key === "Escape") tip.hidden = true; });
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

// On paper nothing can be opened.
const paper = matchMedia("print");
const onPaper = isPrinted => {
  for (const details of document.querySelectorAll("details")) {
    if (isPrinted && !details.open) { details.open = true; details.dataset.opened = ""; }
    if (!isPrinted && "opened" in details.dataset) { details.open = false; delete details.dataset.opened; }
  }
};
paper.addEventListener("change", () => onPaper(paper.matches));
addEventListener("beforeprint", () => onPaper(true));
addEventListener("afterprint", () => onPaper(false));

const table = document.getElementById("every-cell");
if (table) {
  const rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells];
  const form = document.querySelector(".filters"), shown = form.querySelector("output");
  const held = cell => cell.dataset.value === undefined ? cell.textContent
    : cell.dataset.value === "" ? null : Number(cell.dataset.value);

  // Unknown figures stay last, whichever way it is sorted.
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number") return sign * (a - b);
    return sign * a.localeCompare(b, "en", { numeric: true });
  };
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const isUp = head.getAttribute("aria-sort") !== "ascending", sign = isUp ? 1 : -1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    const keyed = rows.map(row => [held(row.cells[column]), row]);
    keyed.sort((a, b) => compare(a[0], b[0], sign));
    table.tBodies[0].append(...keyed.map(([, row]) => row));
  }));

  const filter = () => {
    const wanted = [...form.querySelectorAll("select")].map(select => [Number(select.dataset.column), select.value]);
    const words = form.querySelector("input").value.trim().toLowerCase();
    let count = 0;
    for (const row of rows) {
      const fits = wanted.every(([column, value]) => !value || row.cells[column].textContent === value);
      row.hidden = !(fits && (!words || row.textContent.toLowerCase().includes(words)));
      count += !row.hidden;
    }
    shown.textContent = `${count} of ${rows.length} cells`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", event => event.preventDefault());

  // What is shown, in the order in which it is shown, as numbers in base units.
  const keys = heads.map(head => head.dataset.key);
  const taken = () => [...table.tBodies[0].rows].filter(row => !row.hidden).map(row => [...row.cells].map(held));
  // A spreadsheet would take text that begins like this for a formula.
  const quoted = value => value === null ? "" : typeof value === "number" ? String(value)
    : `"${(/^[=+\-@\t\r]/.test(value) ? "'" : "") + value.replaceAll('"', '""')}"`;
  const forms = {
    csv: () => ["text/csv", [keys.map(quoted), ...taken().map(row => row.map(quoted))].map(row => row.join(",") + "\r\n").join("")],
    json: () => ["application/json", JSON.stringify(taken().map(row => Object.fromEntries(row.map((value, at) => [keys[at], value]))), null, 1)],
  };
  for (const button of form.querySelectorAll("[data-download]")) button.addEventListener("click", () => {
    const kind = button.dataset.download, [type, text] = forms[kind]();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = `speclift-cells.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
