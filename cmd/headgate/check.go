package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/redisdoc"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
)

// read reads a document. An error that is no limits.Faults is of the file.
func (c *call) read(name string) (*limits.Document, error) {
	in := c.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, limits.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	return limits.Parse(text, yamldoc.Decode)
}

// must reads a document that has to be valid. Its faults are printed.
func (c *call) must(name string) (*limits.Document, error) {
	d, err := c.read(name)
	var faults limits.Faults
	if errors.As(err, &faults) {
		for _, f := range faults {
			c.warnf("%s\n", at(name, f))
		}
		return nil, fmt.Errorf("%s is not valid", name)
	}
	return d, err
}

// at returns a fault as compilers print theirs, so that editors find the place.
func at(name string, f *limits.Fault) string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %v", name, f)
	}
	text := f.Err.Error()
	if f.Path != "" {
		text = f.Path + ": " + text
	}
	return fmt.Sprintf("%s:%d:%d: %s", name, f.Line, f.Column, text)
}

// A jsonFault is a fault as -json prints it.
type jsonFault struct {
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Path   string `json:"path,omitempty"`
	Text   string `json:"text"`
}

func jsonFaults(faults limits.Faults) []jsonFault {
	all := make([]jsonFault, 0, len(faults))
	for _, f := range faults {
		all = append(all, jsonFault{f.Line, f.Column, f.Path, f.Err.Error()})
	}
	return all
}

// check says what is wrong with documents, for the servers that it is told of.
func check(ctx context.Context, c *call) (int, error) {
	r := c.redisFlags()
	kind := c.storeFlag()
	ask := c.flags.Bool("servers", false, "check it for the servers that have told the Redis of -redis of themselves")
	files, err := c.parse(1, 1000)
	if err != nil {
		return 0, err
	}
	var servers []redisdoc.Server
	if *ask {
		if servers, err = r.servers(ctx); err != nil {
			return 0, err
		}
	}
	all, err := fleetOf(servers, *kind)
	if err != nil {
		return 0, err
	}
	var results []checked
	code := exitOK
	for _, name := range files {
		r, err := c.checkFile(name, all)
		if err != nil {
			return 0, err
		}
		if len(r.Faults) > 0 {
			code = exitNo
		}
		results = append(results, r)
	}
	return code, c.print(results, func() {})
}

// A checked file is one as -json prints it.
type checked struct {
	File    string      `json:"file"`
	Version string      `json:"version,omitempty"`
	Faults  []jsonFault `json:"faults"`
	Notes   []jsonFault `json:"notes"`
}

func (c *call) checkFile(name string, servers fleet) (checked, error) {
	d, err := c.read(name)
	var faults, notes limits.Faults
	if err != nil && !errors.As(err, &faults) {
		return checked{}, err
	}
	if d != nil {
		faults, notes = servers.refuse(d), d.Notes()
	}
	r := checked{File: name, Faults: jsonFaults(faults), Notes: jsonFaults(notes)}
	if len(faults) == 0 {
		if err := published(d); err != nil {
			return checked{}, err
		}
		r.Version = d.Version()
	}
	if c.json {
		return r, nil
	}
	for _, f := range faults {
		c.printf("%s\n", at(name, f))
	}
	for _, f := range notes {
		c.printf("%s (a note)\n", at(name, f))
	}
	if r.Version != "" {
		c.printf("%s: ok, version %s\n", name, r.Version)
	}
	return r, nil
}

// published returns why servers would not read a document as it is published.
func published(d *limits.Document) error {
	text, err := d.MarshalJSON()
	if err != nil {
		return err
	}
	if _, err := limits.Parse(text, nil); err != nil {
		return fmt.Errorf("servers would not read the document as it is published: %w", err)
	}
	return nil
}

// A jsonChange is a change as -json prints it.
type jsonChange struct {
	Limit string `json:"limit"`
	Slots bool   `json:"slots,omitempty"`
	What  string `json:"what"`
	Was   string `json:"was,omitempty"`
	Is    string `json:"is,omitempty"`
	Lost  bool   `json:"lost,omitempty"`
	Key   string `json:"key,omitempty"`
	Line  int    `json:"line,omitempty"`
}

// changes returns the changes of a diff, with keys.
func changes(d limits.Diff) []jsonChange {
	all := make([]jsonChange, 0, len(d.Changes))
	for _, change := range d.Changes {
		all = append(all, jsonChange{change.Limit, change.Slots, change.What, change.Was, change.Is, change.Lost, change.Key, change.Line})
	}
	return all
}

// printDiff prints a diff for people, with keys.
func (c *call) printDiff(d limits.Diff) {
	for _, change := range d.Changes {
		if change.Key != "" {
			change.What += fmt.Sprintf(" %q", change.Key)
		}
		c.printf("%v\n", change)
	}
}

// diff says what changes between two documents.
func diff(_ context.Context, c *call) (int, error) {
	files, err := c.parse(2, 2)
	if err != nil {
		return 0, err
	}
	from, err := c.must(files[0])
	if err != nil {
		return 0, err
	}
	to, err := c.must(files[1])
	if err != nil {
		return 0, err
	}
	d := limits.Compare(from, to)
	code := exitOK
	if len(d.Changes) > 0 {
		code = exitNo
	}
	if len(d.Lost()) > 0 {
		code = exitLoss
	}
	return code, c.print(map[string]any{"from": d.From, "to": d.To, "changes": changes(d)}, func() {
		c.printDiff(d)
		if len(d.Changes) == 0 {
			c.printf("no difference, version %s\n", d.To)
		}
	})
}
