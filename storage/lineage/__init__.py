"""The lineage of models: of one model as a tree (tree.py), of all models as a graph (graph.py)."""
