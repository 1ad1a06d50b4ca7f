"""One tolerance for each precision."""

TOLERANCE = {
    "float32": {"rtol": 2e-3, "atol": 2e-4},
    "float64": {"rtol": 1e-8, "atol": 1e-9},
}
EXACT = TOLERANCE["float64"]
