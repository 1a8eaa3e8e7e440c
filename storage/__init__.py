"""The workspace on disk: records, the database with its journal, imports and exports.

records.py         the record types that all other modules use
engine/            one writer thread, journal before commit, backup and restore; no labeling logic
tables/            reading and writing records, one module per record type
labeling/          the queue, leases, judgments
importing/, exporting/    import and export of files
lineage/           from a policy back to the judgments it learned from
analysis/          agreement and reliability of annotators
sides.py           which side of the screen a response is on
worker_files.py    the inputs and outputs of a worker
commands.py        the commands of the command line and the administrator's route
"""
