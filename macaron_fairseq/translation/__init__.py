"""Raw text in, raw text out, with trained models (`macaron-fairseq translate`).

In Python, after `from macaron_fairseq import plugin`:

    data = data_folder.read(Path("DATA"))
    engine = fairseq_engine.load("averaged.pt", data, Search(beam=5))
    translator.translate_file(Path("news.en"), Path("news.de"), engine, data)
"""
