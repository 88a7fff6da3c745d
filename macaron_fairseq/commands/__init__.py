"""The command line: a module for each `macaron-fairseq NAME`.

Some share others: `arguments`, types of arguments; `reading`, what models read; `searching`, how
they translate; `residual_stream`, the other half of `dynamics`.
"""
