package headgated

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/backend"
	limitsdoc "github.com/headgate/headgate/internal/document"
	"github.com/headgate/headgate/internal/old/keywatch"
	"github.com/headgate/headgate/internal/old/settle"
)

// What is read again while the server runs.
const (
	ofDocument = iota
	ofCertificates
	reloaded
)

var whats = [reloaded]string{"document", "certificates"}

// A configuration is what a document says, as of one moment. It does not change.
type configuration struct {
	*document

	version string
	store   *backend.Store
	watch   *keywatch.Watch
	charges map[*routeCharge]int // their indexes in watch
	uses    struct{ host, method, path bool }
}

// texts are what was read: the document, and that of the limits, which is nil if they are in the same.
type texts struct {
	document, limits []byte
	files            []settle.File
}

func (t *texts) equal(u *texts) bool {
	return u != nil && bytes.Equal(t.document, u.document) && bytes.Equal(t.limits, u.limits) && settle.Equal(t.files, u.files)
}

// version returns what tells these texts from others.
func (t *texts) version() string {
	sum := sha256.Sum256(t.document)
	if t.limits != nil {
		sum = sha256.Sum256(append(sum[:], t.limits...))
	}
	for _, f := range t.files {
		sum = sha256.Sum256(append(append(sum[:], f.Name...), f.Text...))
	}
	return hex.EncodeToString(sum[:6])
}

const loadTimeout = 5 * time.Second

// begin reads everything for the first time.
func (s *Server) begin() error {
	certificates, err := s.config.TLS.load(nil)
	if err != nil {
		return err
	}
	s.certificates.Store(certificates)
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	read, err := s.load(ctx)
	if err != nil {
		return fmt.Errorf("headgated: %w", err)
	}
	d, err := s.parse(read)
	if err != nil {
		return err
	}
	s.read = read
	s.enact(read, d)
	s.share(ctx, nil)
	return nil
}

// load reads the document, and the limits that are elsewhere.
func (s *Server) load(ctx context.Context) (*texts, error) {
	var t texts
	var err error
	if t.document, err = s.config.Document(ctx); err == nil && s.shared != nil {
		err = s.loadShared(ctx, &t)
	}
	if err == nil && s.config.EnvoyConfig != "" {
		var before []settle.File
		if s.read != nil {
			before = s.read.files
		}
		t.files, err = settle.Read(ctx, before, limitsdoc.MaxBytes, s.ruleFiles)
	}
	return &t, err
}

// loadShared reads the limits in Redis, unless their version is known.
func (s *Server) loadShared(ctx context.Context, t *texts) error {
	version, err := s.shared.Version(ctx)
	if err != nil {
		return err
	}
	if s.read != nil && s.read.limits != nil && version == s.me.Found {
		t.limits = s.read.limits
		return nil
	}
	t.limits, s.me.Found, err = s.shared.Read(ctx)
	return err
}

// ruleFiles returns the names of the files with domains, in order.
func (s *Server) ruleFiles() ([]string, error) {
	names, err := filesIn(s.config.EnvoyConfig, maxNested)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("there is no file in %s", s.config.EnvoyConfig)
	}
	return names, err
}

// maxNested is how many directories may be in each other.
const maxNested = 8

// filesIn returns the names of the files in a directory and in those below it, but for hidden ones. Links are followed,
// as a ConfigMap has them: nested bounds those that lead back.
func filesIn(directory string, nested int) (names []string, err error) {
	if nested == 0 {
		return nil, fmt.Errorf("more than %d directories are in each other: %s", maxNested, directory)
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := filepath.Join(directory, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if info, err := os.Stat(name); err != nil || !info.IsDir() {
			names = append(names, name) // reading it says what is wrong with it
			continue
		}
		below, err := filesIn(name, nested-1)
		if err != nil {
			return nil, err
		}
		names = append(names, below...)
	}
	return names, nil
}

// parse returns the document of what was read.
func (s *Server) parse(read *texts) (*document, error) {
	d, err := parse(read.document, read.limits != nil, s.store, s.rls)
	if err != nil {
		return nil, err
	}
	if read.limits != nil {
		of, err := limitsdoc.Parse(read.limits)
		if err == nil {
			err = of.Prepare(s.store.Rates.Prepare)
		}
		if err != nil {
			return nil, errors.New("headgated: the limits in Redis: " + err.Error()) // whose places are not those of the document
		}
		d.enact(of)
		if faults := d.missing(); len(faults) > 0 {
			return nil, faults
		}
	}
	if err := d.addFiles(read.files, true, s.store, s.rls); err != nil {
		return nil, err
	}
	return d, nil
}

// mostChanges of a document are told.
const mostChanges = 20

// tellChanges tells what a document changes in the limits, without keys.
func (s *Server) tellChanges(before, now *document) {
	all := limitsdoc.Diff(before.limits, now.limits)
	for i, change := range all {
		if i == mostChanges {
			s.log.Info("headgated: and more changes of limits", slog.Int("changes", len(all)-i))
			break
		}
		level := slog.LevelInfo
		if change.Fresh {
			level = slog.LevelWarn
		}
		s.log.Log(context.Background(), level, "headgated: a limit changes", slog.String("change", change.Text))
	}
}

// Reload reads the certificates and the document again, and returns why one of them does not apply.
// Then everything stays as it was. Otherwise the changes apply to requests from now on. Counts,
// remembered refusals and leases of limits that did not change stay.
func (s *Server) Reload(ctx context.Context) error { return s.reload(ctx, true) }

// reload is Reload of what has changed, or of all.
func (s *Server) reload(ctx context.Context, all bool) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	certificates, errCertificates := s.config.TLS.load(s.certificates.Load())
	if errCertificates == nil {
		s.certificates.Store(certificates)
	}
	s.tell(ofCertificates, errCertificates)
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	read, err := s.load(ctx)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		s.read = nil // the caller gave up, which is no fault of what was read
		return errors.Join(errCertificates, ctx.Err())
	case err != nil:
		s.read = nil
	case !all && read.equal(s.read):
		err = s.faultOf(ofDocument)
	default:
		s.read, err = read, s.apply(read)
	}
	s.tell(ofDocument, err)
	s.share(ctx, err)
	return errors.Join(errCertificates, err)
}

// share tells who has pushed the limits what became of them.
func (s *Server) share(ctx context.Context, err error) {
	if s.shared == nil {
		return
	}
	s.me.Err = ""
	if err != nil {
		s.me.Err = err.Error()
	} else {
		s.me.Version = s.me.Found
	}
	_ = s.shared.Tell(ctx, s.me) // it may not be permitted
}

// apply makes a document the one in force.
func (s *Server) apply(read *texts) error {
	d, err := s.parse(read)
	if err == nil {
		s.enact(read, d)
	}
	return err
}

// enact makes a document the configuration.
func (s *Server) enact(read *texts, d *document) {
	c := &configuration{document: d, version: read.version(), store: s.store, charges: make(map[*routeCharge]int)}
	var names []string
	for _, t := range d.routes {
		c.uses.host = c.uses.host || len(t.hosts) > 0
		c.uses.method = c.uses.method || len(t.methods) > 0
		c.uses.path = c.uses.path || t.path != nil
		for _, charge := range t.charges {
			c.charges[charge] = len(names)
			c.uses.method = c.uses.method || slices.Contains(charge.parts, wordMethod)
			names = append(names, strings.TrimSuffix(charge.place.Path, "."+wordLimit)+": "+charge.limit)
		}
	}
	c.watch = keywatch.New("headgated", s.log, names, false)
	before := s.current.Swap(c)
	if before != nil && before.version == c.version {
		return
	}
	s.metrics.applied(c.version)
	s.log.Info("headgated: the document applies", slog.String("version", c.version), slog.Int("routes", len(d.routes)))
	s.warnOf(d.limits.Warnings)
	if before != nil {
		s.tellChanges(before.document, d)
		s.warnOfLosses(before.document, d)
	}
}

// warnOf tells the notes of the limits, which have no keys.
func (s *Server) warnOf(notes limitsdoc.Faults) {
	for i, note := range notes {
		if i == mostChanges {
			s.log.Warn("headgated: and more notes about the limits", slog.Int("notes", len(notes)-i))
			break
		}
		s.log.Warn("headgated: a note about the limits", slog.String("note", note.String()))
	}
}

// warnOfLosses tells which descriptors begin anew with another document.
func (s *Server) warnOfLosses(before, now *document) {
	was := make(map[string]string)
	for r := range before.rules() {
		was[r.id] = r.usage()
	}
	lost := 0
	for r := range now.rules() {
		if was, is := was[r.id], r.usage(); was == "" || is == "" || was == is {
			continue
		}
		if lost++; lost <= mostChanges {
			s.log.Warn("headgated: what was used of a limit does not count any more", slog.String("descriptor", label(r.path)))
		}
	}
	if lost > mostChanges {
		s.log.Warn("headgated: and what was used of more limits", slog.Int("limits", lost-mostChanges))
	}
}

// tell counts what became of something that was read, and logs it if it is news.
func (s *Server) tell(what int, err error) {
	s.mu.Lock()
	before := s.faults[what]
	s.faults[what] = err
	s.mu.Unlock()
	news := err != nil && (before == nil || before.Error() != err.Error())
	s.metrics.reloaded(whats[what], err != nil, news)
	switch {
	case news:
		s.log.Error("headgated: what was read does not apply: the one before stays in force", slog.String("what", whats[what]), slog.String("error", err.Error()))
	case err == nil && before != nil:
		s.log.Info("headgated: what was read applies again", slog.String("what", whats[what]))
	}
}

func (s *Server) faultOf(what int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults[what]
}
