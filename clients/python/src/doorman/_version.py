"""The version of this package: that of Doorman."""
VERSION = "0.2.0"
