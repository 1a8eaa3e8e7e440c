"""The Judgment form section: what annotators are asked about a pair."""
