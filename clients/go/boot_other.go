//go:build !linux

package doorman

import "time"

// sinceBoot has no such clock on this system.
func sinceBoot() (time.Duration, bool) { return 0, false }
