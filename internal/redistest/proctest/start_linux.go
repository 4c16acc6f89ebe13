package proctest

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// start starts cmd so that the kernel kills it when this process dies. The kernel
// goes by the thread that started it: one that never ends starts them all.
func start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done := make(chan error)
	starter() <- func() { done <- cmd.Start() }
	return <-done
}

var starter = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})
