"""The programme as a YAML file, and its versions in the topic loyalty-programmes."""
