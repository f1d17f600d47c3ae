"""Data sets: named ones, and your tables and images."""

from bayesieve.data.examples import DataSet as DataSet
from bayesieve.data.examples import Examples as Examples
from bayesieve.data.examples import gather as gather
from bayesieve.data.files import data_root as data_root
from bayesieve.data.images import prepare_images as prepare_images
from bayesieve.data.registry import DataInfo as DataInfo
from bayesieve.data.registry import RemoteFile as RemoteFile
from bayesieve.data.registry import data_info as data_info
from bayesieve.data.registry import fetch_data as fetch_data
from bayesieve.data.registry import list_data as list_data
from bayesieve.data.registry import load_data as load_data
from bayesieve.data.tables import prepare_table as prepare_table
