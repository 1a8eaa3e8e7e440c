"""The command line: one module a subject.  Only this folder sees labeler, pipeline and storage at once."""
