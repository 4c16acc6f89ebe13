// Package redisurl makes the client of the Redis that a URL names: one server, a primary behind Sentinels, or a
// Cluster. No error shows a part of the URL.
package redisurl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	// errForm does not quote what is wrong, since any part of the URL may be of the password.
	errForm = errors.New("the URL has not the form redis://user:password@host:6379/0: " +
		"encode what is special in the password, and see redis.ParseURL, ParseClusterURL (with addr=) " +
		"and ParseFailoverURL (with master_name=) for what may follow the ?")

	errDatabase = errors.New("a Cluster has no database but 0")
	errReplicas = errors.New("a replica is behind its master, so limits cannot be read there: " +
		"leave out read_only, replica_only, route_by_latency and route_randomly")
	errPasswords = errors.New("there is a password in the URL, and a file of passwords: give one of them")
)

// Config is what a URL does not say.
type Config struct {
	// PasswordFile, if not empty, has the password of Redis, in the place of one in the URL. It is read anew for each
	// connection.
	PasswordFile string

	// Timeout is for dialling, reading and writing, unless the URL has other times.
	Timeout time.Duration
}

// Open returns a client, which heeds deadlines and repeats nothing unless the URL asks for that. It does not connect.
// With master_name= the URL names a Sentinel, as [redis.ParseFailoverURL] has it; else with addr= a node of a Cluster,
// as [redis.ParseClusterURL] has it; else a server, as [redis.ParseURL] has it.
//
// It refuses a URL with an @ after its host. There the host is in truth the beginning of a password, with a slash, a
// question mark or a number sign. Errors of connecting would show it.
func Open(text string, config Config) (redis.UniversalClient, error) {
	_, rest, _ := strings.Cut(text, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 && strings.Contains(rest[i:], "@") {
		return nil, errForm
	}
	address, err := url.Parse(text)
	if err != nil || strings.Contains(address.Host, ",") { // several addresses are addr=
		return nil, errForm
	}
	// Which of go-redis's three kinds of URL it is, the query says: all have the same scheme.
	query := address.Query()
	password, _ := address.User.Password()
	var client redis.UniversalClient
	switch {
	case query.Has("master_name"):
		client, err = config.sentinel(text)
		password = query.Get("password") // before the host there is that of the Sentinel
	case query.Has("addr"):
		client, err = config.cluster(address, query)
	default:
		client, err = config.server(text)
	}
	if err == nil && config.PasswordFile != "" && password != "" {
		return nil, errors.Join(errPasswords, client.Close())
	}
	return client, err
}

func (c *Config) server(text string) (redis.UniversalClient, error) {
	o, err := redis.ParseURL(text)
	if err != nil { // which may quote any part of the URL
		return nil, errForm
	}
	o.ContextTimeoutEnabled = true
	o.CredentialsProviderContext = c.provider(o.Username)
	c.set(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.DialerRetries, &o.MaxRetries)
	return redis.NewClient(o), nil
}

func (c *Config) cluster(address *url.URL, query url.Values) (redis.UniversalClient, error) {
	// Of a Cluster, go-redis does not look at the path, and does not know db.
	database := cmp.Or(query.Get("db"), strings.Trim(address.Path, "/"), "0")
	query.Del("db")
	address.RawQuery = query.Encode()
	o, err := redis.ParseClusterURL(address.String())
	if err != nil {
		return nil, errForm
	}
	if database != "0" {
		return nil, errDatabase
	}
	if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
		return nil, errReplicas
	}
	o.ContextTimeoutEnabled = true
	o.CredentialsProviderContext = c.provider(o.Username)
	c.set(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.DialerRetries, &o.MaxRetries)
	return redis.NewClusterClient(o), nil
}

func (c *Config) sentinel(text string) (redis.UniversalClient, error) {
	o, err := redis.ParseFailoverURL(text)
	if err != nil || o.MasterName == "" {
		return nil, errForm
	}
	routed := o.RouteByLatency || o.RouteRandomly // of which go-redis makes a panic
	if routed || o.ReplicaOnly || o.UseDisconnectedReplicas {
		return nil, errReplicas
	}
	o.ContextTimeoutEnabled = true
	o.CredentialsProviderContext = c.provider(o.Username)
	c.set(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.DialerRetries, &o.MaxRetries)
	return redis.NewFailoverClient(o), nil
}

// set sets what the URL has not: the times, and that a client tries once. So a connection that is refused or cut is
// known at once, and no charge is sent again.
func (c *Config) set(dial, read, write *time.Duration, dials, retries *int) {
	*dial = cmp.Or(*dial, c.Timeout)
	if *read <= 0 {
		*read = c.Timeout // a call's own deadline may be earlier
	}
	if *write <= 0 {
		*write = c.Timeout
	}
	*dials = cmp.Or(*dials, 1)
	*retries = cmp.Or(*retries, -1)
}

// provider returns what go-redis calls for each connection of a user, or nil without a PasswordFile.
func (c *Config) provider(user string) func(context.Context) (user, password string, err error) {
	if c.PasswordFile == "" {
		return nil
	}
	// Not once: a sidecar may renew it, and connections that are open stay.
	return func(context.Context) (string, string, error) {
		password, err := Read(c.PasswordFile)
		if err != nil {
			return "", "", fmt.Errorf("the file of the password of Redis: %w", err)
		}
		return user, password, nil
	}
}

// errEmpty is about a file of a secret.
var errEmpty = errors.New("it is empty")

// Read returns the secret in a file, without the line break at its end. The error does not show the name: who gives a
// secret in the place of its file must not see it printed.
func Read(name string) (string, error) {
	text, err := os.ReadFile(name)
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	if err != nil {
		return "", err
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", errEmpty
	}
	return secret, nil
}
