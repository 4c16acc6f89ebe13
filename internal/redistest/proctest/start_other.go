//go:build !linux

package proctest

import "os/exec"

// start starts cmd. If this process is killed, cmd continues.
func start(cmd *exec.Cmd) error { return cmd.Start() }
