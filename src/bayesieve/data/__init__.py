"""Data sets: named ones, your tables and images, and simulations."""

from bayesieve.data.examples import DataSet, Examples, gather
from bayesieve.data.fetch import fetch_data
from bayesieve.data.files import data_root
from bayesieve.data.preprocessing import prepare_images
from bayesieve.data.registry import DataInfo, RemoteFile, data_info, list_data, load_data
from bayesieve.data.synthetic import Simulation, additive, two_inputs
from bayesieve.data.tables import prepare_table

__all__ = [
    "DataInfo",
    "DataSet",
    "Examples",
    "RemoteFile",
    "Simulation",
    "additive",
    "data_info",
    "data_root",
    "fetch_data",
    "gather",
    "list_data",
    "load_data",
    "prepare_images",
    "prepare_table",
    "two_inputs",
]
