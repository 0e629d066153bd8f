"""Change data capture from operational databases into Delta Lake, on PySpark, without Kafka."""

__version__ = "0.1.0"
