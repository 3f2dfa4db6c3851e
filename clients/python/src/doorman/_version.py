"""The version of this package: that of Doorman."""
VERSION = "0.1.0"
