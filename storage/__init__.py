"""The workspace on disk: records, the database with its journal, imports and exports.

records.py         the nouns; what every other module speaks in
engine/            one writer thread, journal before commit, backup and restore; knows no labeling
tables/            reading and writing records, one module per noun
labeling/          the queue, leases, judgments
importing/, exporting/    files into records and back
analysis/          agreement and reliability of annotators
sides.py           which side of the screen a response is on
worker_files.py    the inputs and outputs of a worker
commands.py        the commands of the command line and the administrator's route
"""
