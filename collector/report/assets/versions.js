// The version directories of a database.
"use strict";

opmeter.view((data, main) => {
  const { t, el, count, reach } = opmeter;
  opmeter.head(main, {
    title: `${t("database version")} ${data.database}`,
    sub: `${data.store} · ${data.time.slice(0, 16).replace("T", " ")} · ${data.author}`,
  });
  const made = opmeter.section(main, t("Version directories"), t("a page for each stack"));
  opmeter.table(made, {
    name: t("Version directories"), rows: data.versions,
    search: data.versions.length > 10 ? t("search") : null,
    columns: [
      { label: t("version"), value: (row) => row.version, node: (row) => el("a", { href: row.href }, row.version) },
      { label: t("kernel types"), kind: "number", wide: true, value: (row) => row.kernels, text: (row) => count(row.kernels) },
      { label: t("durations"), kind: "number", value: (row) => row.durations, text: (row) => count(row.durations) },
      { label: t("warnings"), kind: "number", value: (row) => row.warned, text: (row) => count(row.warned) },
      { label: t("half-width"), kind: "number", value: (row) => row.median_half_width, text: (row) => reach(row.median_half_width) },
    ],
  });
});
