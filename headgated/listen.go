package headgated

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// cutUnix returns the path of unix:PATH.
func cutUnix(addr string) (path string, ok bool) { return strings.CutPrefix(addr, "unix:") }

// permits returns why a door must not listen at an address, or nil. An empty one is no door.
func (c *Config) permits(addr string) error {
	if addr == "" {
		return nil
	}
	if path, ok := cutUnix(addr); ok {
		if path == "" {
			return errors.New("unix: has no path")
		}
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return errors.New("the address has neither the form HOST:PORT nor unix:PATH")
	}
	if c.Insecure || c.TLS.Cert != "" || host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s is beyond the loopback interface: use TLS, or say -insecure", addr)
}

// listen listens at an address that is permitted. The text is that address, with the port that it got.
func (c *Config) listen(addr string) (l net.Listener, text string, err error) {
	if path, ok := cutUnix(addr); ok {
		l, err = listenUnix(path, c.SocketMode)
		return l, addr, err
	}
	l, err = net.Listen("tcp", addr)
	if err != nil {
		return nil, "", err
	}
	return l, l.Addr().String(), nil
}

// maxPath is the length of the longest path of a socket, on all systems.
const maxPath = 103

// listenUnix listens on a socket of that mode. A socket that is there and that nobody listens on is
// replaced: by renaming, so that there is no instant without one, nor one with other permissions.
func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there and is no socket", path)
	default:
		c, err := (&net.Dialer{Timeout: time.Second}).Dial("unix", path)
		if err == nil {
			_ = c.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // one that is busy has another error
			return nil, fmt.Errorf("another process listens on %s", path)
		}
	}
	private, err := os.MkdirTemp(filepath.Dir(path), ".") // nobody else can enter it until the socket has its mode
	if err != nil {
		return nil, err
	}
	defer os.Remove(private) //nolint:errcheck // the socket is out of it by then, or removed
	fresh := filepath.Join(private, "s")
	if longest := max(len(path), len(fresh)); longest > maxPath {
		return nil, fmt.Errorf("the path of a socket has at most %d bytes: %s", maxPath-longest+len(path), path)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	s := &socket{UnixListener: l, path: path}
	if err = os.Chmod(fresh, mode); err == nil {
		if s.info, err = os.Lstat(fresh); err == nil {
			err = os.Rename(fresh, path)
		}
	}
	if err != nil {
		_ = os.Remove(fresh)
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// A socket is a listener that removes its file when it is closed, unless that is another's by then.
type socket struct {
	*net.UnixListener

	path   string
	info   fs.FileInfo
	remove sync.Once // only while it listens: then the number of its file may be another's
}

// Close implements [net.Listener].
func (s *socket) Close() error {
	s.remove.Do(func() {
		if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.info) {
			_ = os.Remove(s.path)
		}
	})
	return s.UnixListener.Close()
}

// A certificates is what the doors and the admin door show, and the text that it is made of.
type certificates struct {
	text        [3][]byte
	door, admin *tls.Config // nil without TLS
}

// load reads the certificates. It returns those before if nothing has changed, so that clients can resume
// their sessions. before may be nil.
func (t *TLS) load(before *certificates) (*certificates, error) {
	c := &certificates{}
	if t.Cert == "" {
		return c, nil
	}
	changed := before == nil
	for i, name := range [...]string{t.Cert, t.Key, t.ClientCA} {
		if name == "" {
			continue
		}
		var err error
		if c.text[i], err = os.ReadFile(name); err != nil {
			return nil, fmt.Errorf("headgated: %w", err)
		}
		changed = changed || !bytes.Equal(c.text[i], before.text[i])
	}
	if !changed {
		return before, nil
	}
	pair, err := tls.X509KeyPair(c.text[0], c.text[1])
	if err != nil {
		return nil, fmt.Errorf("headgated: the certificate %s and its key: %w", t.Cert, err)
	}
	c.admin = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	c.door = c.admin
	if t.ClientCA == "" {
		return c, nil
	}
	c.door = c.admin.Clone()
	c.door.ClientAuth, c.door.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !c.door.ClientCAs.AppendCertsFromPEM(c.text[2]) {
		return nil, fmt.Errorf("headgated: there is no certificate in %s", t.ClientCA)
	}
	if len(t.ClientSAN) > 0 {
		c.door.VerifyConnection = t.verify
	}
	return c, nil
}

var errSAN = errors.New("headgated: the client's certificate has none of the names that may come in")

// verify implements the list of clients. It is called for sessions that are resumed too.
func (t *TLS) verify(s tls.ConnectionState) error {
	if len(s.PeerCertificates) == 0 {
		return errSAN
	}
	leaf := s.PeerCertificates[0]
	names := slices.Clone(leaf.EmailAddresses)
	for _, uri := range leaf.URIs {
		names = append(names, uri.String())
	}
	for _, may := range t.ClientSAN {
		dns := func(name string) bool { return strings.EqualFold(name, may) }
		if slices.Contains(names, may) || slices.ContainsFunc(leaf.DNSNames, dns) || slices.ContainsFunc(leaf.IPAddresses, net.ParseIP(may).Equal) {
			return nil
		}
	}
	return errSAN
}
