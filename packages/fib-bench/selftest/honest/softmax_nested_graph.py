"""Replays a graph of its own in every call, so that it becomes a child of the graph into which it is captured itself."""

import torch

graphs = {}


def run(x):
    if x.shape not in graphs:
        if torch.cuda.is_current_stream_capturing():
            return torch.softmax(x, dim=-1)
        mine, graph = x.clone(), torch.cuda.CUDAGraph()
        torch.softmax(mine, dim=-1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = torch.softmax(mine, dim=-1)
        graphs[x.shape] = graph, mine, y
    graph, mine, y = graphs[x.shape]
    mine.copy_(x)
    graph.replay()
    return y.clone()
