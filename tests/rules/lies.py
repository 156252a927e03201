"""Rules that lie: they split what must be whole, or reduce by the wrong sum."""

# (operation, rule, its columns)
LIES: list[tuple[str, str, dict[str, str]]] = [
    ("aten.softmax.int", "*b -> *b", {}),
    ("aten.relu.default", "*b -> *b", {"partial": "0"}),
    ("aten.mul.Tensor", "*b, *b -> *b", {"partial": "0+1"}),
    ("aten.add.Tensor", "*b, *b -> *b", {"partial": "0|1"}),
    ("aten.matmul.default", "*b m k, *b k n -> *b m n", {"reduce": "max"}),
    ("autopar.row_max", "*b v -> *b", {"reduce": "sum"}),
    ("aten.amax.default", "reduction", {}),
    ("autopar.as_complex", "*b c -> *b", {}),
    ("aten.polar.default", "*b, *b -> *b", {"partial": "0+1"}),
]
