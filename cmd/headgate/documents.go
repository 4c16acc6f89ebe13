package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/headgate/headgate/internal/document"
)

// read reads a file with a document. An error that is no document.Faults is of the file. The name - is standard input.
// With faults the text is returned, too.
func (c *call) read(name string) (text []byte, parsed *document.Document, err error) {
	in := c.stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, nil, err
		}
		defer file.Close()
		in = file
	}
	// One byte more than a document may have is a fault of it, and not of the file.
	text, err = io.ReadAll(io.LimitReader(in, document.MaxBytes+1))
	if err != nil {
		return nil, nil, err
	}
	parsed, err = document.Parse(text)
	return text, parsed, err
}

// must reads a document that has to be valid. Its faults are printed, a line each, and the error says only that there
// are some.
func (c *call) must(name string) (text []byte, parsed *document.Document, err error) {
	text, parsed, err = c.read(name)
	var faults document.Faults
	if errors.As(err, &faults) {
		for _, fault := range faults {
			c.warnf("%s\n", at(name, fault))
		}
		return nil, nil, fmt.Errorf("%s is not valid", name)
	}
	return text, parsed, err
}

// at returns a fault as compilers print theirs, so that editors find the place.
func at(name string, fault document.Fault) string {
	return fmt.Sprintf("%s:%d:%d: %s", name, fault.Line, fault.Column, fault.Text)
}

// list returns a list that is not nil, which would be null in JSON.
func list[List ~[]E, E any](all List) List { return append(List{}, all...) }

// A checked file is one as -json prints it.
//
//	[{"file": "limits.yaml", "version": "5f0d6c1b2a97", "faults": [], "warnings": []}]
type checked struct {
	File     string          `json:"file"`
	Version  string          `json:"version,omitempty"`
	Faults   document.Faults `json:"faults"`
	Warnings document.Faults `json:"warnings"`
}

// check says what is wrong with documents. Warnings do not change the exit code.
func check(_ context.Context, command *call) (int, error) {
	files, err := command.parse(1, 1000)
	if err != nil {
		return 0, err
	}
	var all []checked
	code := exitOK
	// All faults of all files are told. Only a file that cannot be read ends it.
	for _, name := range files {
		_, parsed, err := command.read(name)
		var faults document.Faults
		if err != nil && !errors.As(err, &faults) {
			return 0, err
		}
		one := checked{File: name, Faults: list(faults), Warnings: document.Faults{}}
		if parsed != nil {
			one.Version = parsed.Version
			one.Warnings = list(parsed.Warnings)
		} else {
			code = exitNo // for all of them
		}
		all = append(all, one)
	}
	return code, command.print(all, func() {
		for _, one := range all {
			for _, fault := range one.Faults {
				command.printf("%s\n", at(one.File, fault))
			}
			for _, fault := range one.Warnings {
				command.printf("%s (a warning)\n", at(one.File, fault))
			}
			if one.Version != "" {
				command.printf("%s: ok, version %s\n", one.File, one.Version)
			}
		}
	})
}

// printChanges prints changes for people, with keys.
func (c *call) printChanges(all []document.Change) {
	for _, change := range all {
		if change.Key != "" {
			change.Text += fmt.Sprintf(" [%s]", change.Key)
		}
		c.printf("%s\n", change.Text)
	}
}

// diff says what changes between two documents.
//
//	{"from": "5f0d6c1b2a97", "to": "c3a91d60b7e2", "changes": [{"text": "...", "fresh": true}]}
func diff(_ context.Context, command *call) (int, error) {
	files, err := command.parse(2, 2)
	if err != nil {
		return 0, err
	}
	_, from, err := command.must(files[0])
	if err != nil {
		return 0, err
	}
	_, to, err := command.must(files[1])
	if err != nil {
		return 0, err
	}
	// As diff of files does: 1 says that there is a difference.
	all := list(document.Diff(from, to))
	code := exitOK
	if len(all) > 0 {
		code = exitNo
	}
	return code, command.print(map[string]any{"from": from.Version, "to": to.Version, "changes": all}, func() {
		command.printChanges(all)
		if len(all) == 0 {
			command.printf("no difference, version %s\n", to.Version)
		}
	})
}
