//! The dashboard's own files, built into the binary. They hold nothing of this process, so that they are open to whoever reaches the
//! listener; what they show comes from `/api/v1`, which asks for the token where there is one.
//!
//! | path | file |
//! |---|---|
//! | `/` | the page |
//! | `/dashboard/…` | its style, its scripts, its icon |

use std::sync::LazyLock;

use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{self, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH},
};
use http_body_util::Full;
use sha2::{Digest as _, Sha256};

use super::answer::Answer;

/// One file, as it is served.
#[derive(Debug)]
pub(super) struct File {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
    /// `ETag`: of what is in it (RFC 9110, section 8.8.3).
    tag: LazyLock<Option<HeaderValue>, fn() -> Option<HeaderValue>>,
}

macro_rules! files {
    ($($path:literal, $content_type:literal, $file:literal;)+) => {
        static FILES: [File; [$($path),+].len()] = [$(File {
            path: $path,
            content_type: $content_type,
            text: include_str!($file),
            tag: LazyLock::new(|| tag(include_str!($file))),
        }),+];
    };
}

files! {
    "/", "text/html; charset=utf-8", "dashboard/index.html";
    "/dashboard/style.css", "text/css; charset=utf-8", "dashboard/style.css";
    "/dashboard/main.js", "text/javascript; charset=utf-8", "dashboard/main.js";
    "/dashboard/elements.js", "text/javascript; charset=utf-8", "dashboard/elements.js";
    "/dashboard/api.js", "text/javascript; charset=utf-8", "dashboard/api.js";
    "/dashboard/overview.js", "text/javascript; charset=utf-8", "dashboard/overview.js";
    "/dashboard/traffic.js", "text/javascript; charset=utf-8", "dashboard/traffic.js";
    "/dashboard/records.js", "text/javascript; charset=utf-8", "dashboard/records.js";
    "/dashboard/policy.js", "text/javascript; charset=utf-8", "dashboard/policy.js";
    "/dashboard/icon.svg", "image/svg+xml", "dashboard/icon.svg";
}

/// What stands in each answer: nothing is loaded from elsewhere, nothing runs but the scripts here, no text becomes markup, and no
/// other page shows this one in a frame.
const PROTECTION: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The file at this path, if there is one.
pub(super) fn file(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

impl File {
    /// 200 with the file, or 304 where the asker has it.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Answer {
        let tag = self.tag.as_ref();
        let is_known = tag.is_some_and(|tag| knows(headers, tag.as_bytes()));
        let mut answer = Response::new(Full::from(if is_known { "" } else { self.text }));
        if is_known {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let own = answer.headers_mut();
        own.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        // Kept, and asked for each time: another version of the proxy has another page.
        own.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Some(tag) = tag {
            own.insert(ETAG, tag.clone());
        }
        for (name, value) in PROTECTION {
            own.insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}

/// Whether `If-None-Match` names this tag (RFC 9110, section 13.1.2); weakly compared.
fn knows(headers: &HeaderMap, tag: &[u8]) -> bool {
    let lines = headers.get_all(IF_NONE_MATCH).iter();
    lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .any(|known| known == b"*" || known.strip_prefix(b"W/").unwrap_or(known) == tag)
}

fn tag(text: &str) -> Option<HeaderValue> {
    let digest = Sha256::digest(text);
    let first = digest
        .first_chunk()
        .map(|first| u64::from_be_bytes(*first))?;
    HeaderValue::try_from(format!("\"{first:016x}\"")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_served_once_and_then_known() {
        for own in &FILES {
            let first = own.answer(&HeaderMap::new());
            assert_eq!(first.status(), StatusCode::OK, "{}", own.path);
            let tag = first.headers()[ETAG].clone();
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, tag.clone());
            let again = own.answer(&headers);
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{}", own.path);
            assert_eq!(again.headers()[ETAG], tag);
            for other in ["\"0\"", "0", ""] {
                headers.insert(IF_NONE_MATCH, HeaderValue::from_static(other));
                assert_eq!(own.answer(&headers).status(), StatusCode::OK, "{other}");
            }
        }
        assert!(file("/dashboard").is_none() && file("/dashboard/").is_none());
    }

    #[test]
    fn nothing_names_another_place_or_makes_markup_of_text() {
        for own in &FILES {
            let text = own.text.replace("http://www.w3.org/", "");
            for never in [
                "://",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "localStorage",
                "sessionStorage",
                "document.cookie",
                " style=",
                " onclick=",
                "<script>",
                "<style",
            ] {
                assert!(!text.contains(never), "{} has {never}", own.path);
            }
        }
    }

    #[test]
    fn what_the_page_names_is_there() {
        let page = file("/").unwrap().text;
        let scripts = FILES.iter().map(|file| file.text);
        let imports = scripts.flat_map(|text| text.split("from \"./").skip(1));
        let imported =
            imports.map(|rest| format!("/dashboard/{}", rest.split('"').next().unwrap()));
        let named = page.split("\"/dashboard/").skip(1);
        let named = named.map(|rest| format!("/dashboard/{}", rest.split('"').next().unwrap()));
        let all: Vec<String> = imported.chain(named).collect();
        assert!(all.len() > 5, "{all:?}");
        for path in &all {
            assert!(file(path).is_some(), "{path}");
        }
        for own in FILES.iter().skip(1) {
            assert!(all.iter().any(|path| path == own.path), "{}", own.path);
        }
    }
}
