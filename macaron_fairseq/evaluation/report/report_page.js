// The page of a report: tables that sort, and sentence examples that can be searched.

// Rows by a column: by the number that its cells begin with ("84.44 ± 1.20", "1,000"), or by text
// where one does not. What is missing ("-") stays last.
function sort(table, column, direction) {
  const body = table.tBodies[0];
  const text = (row) => row.cells[column].textContent.trim();
  const number = (row) => parseFloat(text(row).replace(/,/g, ""));
  const missing = [...body.rows].filter((row) => text(row) === "-");
  const known = [...body.rows].filter((row) => text(row) !== "-");
  const isNumeric = !known.some((row) => Number.isNaN(number(row)));
  known.sort((one, other) =>
    direction *
    (isNumeric ? number(one) - number(other) : text(one).localeCompare(text(other))),
  );
  body.append(...known, ...missing);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sort(table, column, descending ? -1 : 1);
    });
  });
}

const AT_A_TIME = 10;

for (const section of document.querySelectorAll(".examples")) {
  const form = section.querySelector("form");
  const [search, which] = [form.querySelector("input"), form.querySelector("select")];
  const output = form.querySelector("output");
  const more = section.querySelector(".more");
  const items = [...section.querySelectorAll("li")];
  // Of source, reference and translations, not of what the page says about them.
  const texts = items.map((item) =>
    [...item.querySelectorAll("[lang]")].map((x) => x.textContent.toLowerCase()).join("\n"),
  );
  let most = AT_A_TIME;

  function show() {
    const wanted = search.value.trim().toLowerCase();
    const found = items.filter(
      (item, i) =>
        texts[i].includes(wanted) &&
        (!which.value || item.dataset.kind.split(" ").includes(which.value)),
    );
    const shown = new Set(found.slice(0, most));
    for (const item of items) item.hidden = !shown.has(item);
    more.hidden = shown.size === found.length;
    output.textContent = `${shown.size} of ${found.length}`;
  }

  function restart() {
    most = AT_A_TIME;
    show();
  }

  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  search.addEventListener("input", restart);
  which.addEventListener("change", restart);
  more.addEventListener("click", () => {
    const first = most;
    most += AT_A_TIME;
    show();
    const next = items.filter((item) => !item.hidden)[first];
    next.tabIndex = -1;
    next.focus();
  });
  let before = most;
  window.addEventListener("beforeprint", () => {
    before = most;
    most = items.length;
    show();
  });
  window.addEventListener("afterprint", () => {
    most = before;
    show();
  });
  show();
}

// On paper nothing unfolds.
let unfolded = [];
window.addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("details:not([open])")];
  for (const details of unfolded) details.open = true;
});
window.addEventListener("afterprint", () => {
  for (const details of unfolded) details.open = false;
});
