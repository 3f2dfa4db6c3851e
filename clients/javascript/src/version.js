// The version of the package is that of the library.
export const VERSION = '0.2.0';
