"""The REST service around `attention_core`: HTTP in, HTTP out."""
