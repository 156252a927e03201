"""The demonstration: ``python -m autopar.demo`` plans and trains a transformer on local processes."""
