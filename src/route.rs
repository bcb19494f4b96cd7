//! Routes: which policy a request falls under. Compiled once, read without a lock.

use std::collections::BTreeMap;

use http::Method;

use crate::{
    config::Route,
    core::path::{Segment, for_matching},
};

/// The routes of one configuration, as a tree of path segments.
///
/// Static segments win over `{name}`, `{name}` over `{*rest}`, segment by segment from the left; where that leads
/// nowhere the next best is tried. Among templates that fit, a route that takes the method is what counts.
#[derive(Debug, Default)]
pub struct Router {
    root: Node,
    routes: Vec<Route>,
}

#[derive(Debug, Default)]
struct Node {
    /// There are few, and to hash a segment costs more than to compare it with some.
    literals: BTreeMap<Box<str>, Node>,
    one: Option<Box<Node>>,
    rest: Leaf,
    here: Leaf,
}

/// The routes that end at one place, by method.
#[derive(Debug, Default)]
struct Leaf(Vec<(Method, usize)>);

impl Leaf {
    fn find(&self, method: &Method) -> Option<usize> {
        let found = self.0.iter().find(|(own, _)| own == method);
        found.map(|(_, index)| *index)
    }
}

/// What a request's method and path come to.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Match {
    /// This route, by its index.
    Route(usize),
    /// No route takes this path with this method.
    None,
    /// A route takes the path, and the method but for its letter case: such a method is another one
    /// (RFC 9110, section 9.1), and letting it pass would be a way round the route.
    MethodCase,
}

impl Router {
    /// Compiles the routes of a configuration. Templates and names were checked before.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Self {
        let mut root = Node::default();
        for (index, route) in routes.iter().enumerate() {
            let mut node = &mut root;
            let mut rest = false;
            for segment in route.path.segments() {
                node = match segment {
                    Segment::Literal(text) => {
                        node.literals.entry(text.as_str().into()).or_default()
                    }
                    Segment::One => node.one.get_or_insert_default(),
                    Segment::Rest => {
                        rest = true;
                        node
                    }
                };
            }
            let leaf = if rest { &mut node.rest } else { &mut node.here };
            leaf.0
                .extend(route.methods.iter().map(|method| (method.clone(), index)));
        }
        Self { root, routes }
    }

    /// The route for `method` and the normalised `path`.
    #[must_use]
    pub fn find(&self, method: &Method, path: &str) -> Match {
        let path = for_matching(path);
        let path = path.strip_prefix('/').unwrap_or(&path);
        if let Some(index) = self.root.find(path, method) {
            return Match::Route(index);
        }
        if !method
            .as_str()
            .bytes()
            .any(|byte| byte.is_ascii_lowercase())
        {
            return Match::None;
        }
        let upper = Method::from_bytes(method.as_str().to_ascii_uppercase().as_bytes());
        match upper.ok().and_then(|twin| self.root.find(path, &twin)) {
            Some(_) => Match::MethodCase,
            None => Match::None,
        }
    }

    /// The route at an index that [`Router::find`] gave.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Route> {
        self.routes.get(index)
    }

    /// All routes, in the order of the configuration.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }
}

impl Node {
    /// Depth is bounded by the templates, not by the request: a node is only entered where a template goes on.
    fn find(&self, path: &str, method: &Method) -> Option<usize> {
        if path.is_empty() {
            return self.here.find(method).or_else(|| self.rest.find(method));
        }
        let (segment, tail) = path.split_once('/').unwrap_or((path, ""));
        let literal = self.literals.get(segment);
        literal
            .and_then(|node| node.find(tail, method))
            .or_else(|| self.one.as_ref().and_then(|node| node.find(tail, method)))
            .or_else(|| self.rest.find(method))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::{fixtures, path::Template, policy::RouteName};

    fn router(routes: &[(&str, &str, &str)]) -> Router {
        let policy = Arc::new(fixtures::policy());
        let route = |(name, methods, path): &(&str, &str, &str)| Route {
            name: RouteName::new(name),
            methods: methods
                .split(' ')
                .map(|m| m.parse().expect("a method"))
                .collect(),
            path: Template::parse(path).expect("a template"),
            upstream: 0,
            policy: Arc::clone(&policy),
        };
        Router::new(routes.iter().map(route).collect())
    }

    fn name<'a>(router: &'a Router, method: &str, path: &str) -> &'a str {
        match router.find(&method.parse().expect("a method"), path) {
            Match::Route(index) => router.routes()[index].name.as_str(),
            Match::None => "none",
            Match::MethodCase => "method-case",
        }
    }

    #[test]
    fn static_wins_over_one_and_one_over_rest() {
        let router = router(&[
            ("rest", "POST", "/a/{*rest}"),
            ("param", "POST", "/a/{id}/c"),
            ("static", "POST", "/a/b/c"),
            ("root", "POST", "/"),
        ]);
        for (path, wanted) in [
            ("/a/b/c", "static"),
            ("/a/x/c", "param"),
            ("/a/x/y", "rest"),
            ("/a/b/c/d", "rest"),
            ("/a/b", "rest"),
            ("/a", "rest"),
            ("/", "root"),
            ("/b", "none"),
        ] {
            assert_eq!(name(&router, "POST", path), wanted, "{path}");
        }
    }

    #[test]
    fn a_more_special_template_without_the_method_hides_nothing() {
        let router = router(&[("get", "GET", "/a/b"), ("any", "POST PUT", "/a/{id}")]);
        assert_eq!(name(&router, "POST", "/a/b"), "any");
        assert_eq!(name(&router, "GET", "/a/b"), "get");
        assert_eq!(name(&router, "GET", "/a/c"), "none");
    }

    #[test]
    fn methods_have_a_letter_case() {
        let router = router(&[("orders", "POST", "/orders")]);
        assert_eq!(name(&router, "post", "/orders"), "method-case");
        assert_eq!(name(&router, "Post", "/orders"), "method-case");
        assert_eq!(name(&router, "get", "/orders"), "none");
        assert_eq!(name(&router, "post", "/free"), "none");
    }
}
