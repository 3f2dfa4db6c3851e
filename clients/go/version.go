package doorman

// Version is that of the library.
const Version = "0.2.0"
