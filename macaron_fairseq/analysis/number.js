// How the pages write numbers.

// Three digits; near 1 and −1 three of what is missing there.
function number(value, isSigned = false) {
  const missing = 1 - Math.abs(value);
  const places = 2 - Math.floor(Math.log10(missing));
  const isNear = missing > 1e-6 && missing < 0.01;
  const digits = String(Number(isNear ? value.toFixed(places) : value.toPrecision(3)));
  return (isSigned && value > 0 ? "+" : "") + digits.replaceAll("-", "−");
}
