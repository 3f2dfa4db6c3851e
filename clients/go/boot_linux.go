package doorman

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7 // of <linux/time.h>

// sinceBoot returns the time since the start of the machine, with that of suspensions. Nobody can
// set this clock. false: there is none.
func sinceBoot() (time.Duration, bool) {
	var at syscall.Timespec
	_, _, problem := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime,
		uintptr(unsafe.Pointer(&at)), 0)
	return time.Duration(at.Nano()), problem == 0
}
