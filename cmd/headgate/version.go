package main

import (
	"context"
	"runtime"
	"runtime/debug"
)

// build is what this command was built from.
type build struct {
	Version  string `json:"version"`            // of the module, or (devel)
	Revision string `json:"revision,omitempty"` // of a checkout, with + if it was changed
	Go       string `json:"go"`
	System   string `json:"system"`
}

// version says which headgate this is.
func version(_ context.Context, command *call) (int, error) {
	if _, err := command.parse(0, 0); err != nil {
		return 0, err
	}
	// A build by go install has the version of the module, and one in a checkout its revision.
	built := build{Version: "(devel)", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		built.Version = info.Main.Version
		for _, setting := range info.Settings {
			switch {
			case setting.Key == "vcs.revision":
				built.Revision = setting.Value
			case setting.Key == "vcs.modified" && setting.Value == "true":
				built.Revision += "+"
			}
		}
	}
	return exitOK, command.print(built, func() {
		command.printf("headgate %s", built.Version)
		if built.Revision != "" {
			command.printf(" (%s)", built.Revision)
		}
		command.printf(" %s %s\n", built.Go, built.System)
	})
}
