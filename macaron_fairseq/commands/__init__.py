"""The command line: a module for each `macaron-fairseq NAME`.

Four more are parts that commands share: `arguments`, types of arguments; `reading`, what models
read; `searching`, how they translate; `residual_stream`, the other half of `dynamics`.
"""
