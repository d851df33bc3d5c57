//go:build !linux

package kernelspecs

// reliable reports whether events report all changes of a directory. Only on Linux does ekg know that of file systems.
func reliable(string) bool { return false }
