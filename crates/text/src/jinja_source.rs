//! The source of a chat template before it is compiled. The engine counts a template's work and what it makes, with two
//! gaps that are closed here: it follows chains of operators and values in each other recursively, however long, and it joins
//! lists without charge.

use crate::TemplateError;
use minijinja::machinery::{Span, Token, Tokenizer};
use minijinja::syntax::SyntaxConfig;
use std::collections::BTreeMap;

/// How many operators of an expression may lie in each other, brackets among them. Real templates have up to a few dozen.
const MAX_DEPTH: usize = 400;
/// How many blocks may lie in each other; each `elif` lies in the one before.
const MAX_BLOCKS: usize = 150;

/// The filter behind what is added to something.
pub(crate) const ADDED: &str = "__added";
/// The filter behind what is multiplied with something.
pub(crate) const MULTIPLIED: &str = "__multiplied";

/// The filter behind what a variable is set to.
pub(crate) const SET: &str = "__set";
/// The filter behind what an attribute of a namespace is set to.
pub(crate) const SET_ATTRIBUTE: &str = "__set_attribute";

type Tokens<'s> = Vec<(Token<'s>, Span)>;

/// Checks how deep the source is, and puts the filters above in their places.
pub(crate) fn prepare(
    source: &str,
    name: &str,
    syntax: SyntaxConfig,
    describe: fn(&minijinja::Error) -> String,
) -> Result<String, TemplateError> {
    let mut tokenizer = Tokenizer::new(source, name, false, syntax);
    let mut tokens: Tokens<'_> = Vec::new();
    while let Some(token) = tokenizer.next_token().map_err(|e| TemplateError::Syntax(describe(&e)))? {
        tokens.push(token);
    }
    check_blocks(&tokens, name)?;
    let closes = check_expressions(&tokens, name)?;
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut done = 0;
    let mut texts: BTreeMap<usize, String> =
        filters(&tokens, &closes).into_iter().map(|(at, filter)| (at, format!("|{filter}"))).collect();
    for (from, to, filter) in assignments(&tokens, &closes) {
        texts.entry(from).or_default().push('(');
        texts.entry(to).or_default().push_str(&format!(")|{filter}"));
    }
    for (at, text) in texts {
        out.push_str(&source[done..at]);
        out.push_str(&text);
        done = at;
    }
    out.push_str(&source[done..]);
    Ok(out)
}

fn bad(name: &str, span: Span, what: &str) -> TemplateError {
    TemplateError::Syntax(format!("{what} (in {name}:{})", span.start_line))
}

fn check_blocks(tokens: &Tokens<'_>, name: &str) -> Result<(), TemplateError> {
    // How many blocks each open one stands for, and all together.
    let (mut open, mut depth) = (Vec::new(), 0);
    for pair in tokens.windows(2) {
        let [(Token::BlockStart, span), (Token::Ident(word), _)] = pair else { continue };
        match *word {
            "if" | "for" | "macro" | "call" | "filter" | "with" | "autoescape" => {
                open.push(1);
                depth += 1;
            }
            "elif" => {
                if let Some(last) = open.last_mut() {
                    *last += 1;
                    depth += 1;
                }
            }
            // A `set` may have a body; which it has, nothing here depends on.
            "endset" => {}
            word if word.starts_with("end") => depth -= open.pop().unwrap_or(0),
            _ => {}
        }
        if depth > MAX_BLOCKS {
            return Err(bad(name, *span, &format!("more than {MAX_BLOCKS} blocks lie in each other")));
        }
    }
    Ok(())
}

/// What is between brackets: the operators of the part being read, the deepest brackets in it, the deepest part before.
#[derive(Default)]
struct Level {
    opened: usize,
    operators: usize,
    inner: usize,
    deepest: usize,
}

impl Level {
    fn end_part(&mut self) {
        self.deepest = self.deepest.max(self.operators + self.inner);
        (self.operators, self.inner) = (0, 0);
    }
}

/// Gives each opening bracket's closing one. No path through an expression passes more operators than those of a part of
/// each level, and so none is deeper than their sum.
fn check_expressions(tokens: &Tokens<'_>, name: &str) -> Result<Vec<usize>, TemplateError> {
    let mut closes = vec![0; tokens.len()];
    let mut levels = vec![Level::default()];
    for (at, (token, span)) in tokens.iter().enumerate() {
        let unmatched = || bad(name, *span, "brackets do not match");
        match token {
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                levels.push(Level { opened: at, ..Level::default() });
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                let mut inner = levels.pop().ok_or_else(unmatched)?;
                inner.end_part();
                closes[inner.opened] = at;
                let outer = levels.last_mut().ok_or_else(unmatched)?;
                outer.operators += 1;
                outer.inner = outer.inner.max(inner.deepest);
            }
            Token::VariableEnd | Token::BlockEnd => {
                let [level] = levels.as_mut_slice() else { return Err(unmatched()) };
                *level = Level::default();
            }
            Token::Comma | Token::Colon | Token::Assign => {
                levels.last_mut().ok_or_else(unmatched)?.end_part()
            }
            Token::Ident(word) if !matches!(*word, "and" | "or" | "not" | "in" | "is" | "if" | "else") => {}
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => {}
            Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => {}
            _ => levels.last_mut().ok_or_else(unmatched)?.operators += 1,
        }
        let depth: usize = levels.iter().map(|level| level.operators + level.inner + 1).sum();
        if levels.len() > MAX_DEPTH || depth > MAX_DEPTH {
            return Err(bad(name, *span, &format!("more than {MAX_DEPTH} operators lie in each other")));
        }
    }
    match (levels.len(), tokens.last()) {
        // What follows walks from each bracket to its closing one.
        (2.., Some((_, span))) => Err(bad(name, *span, "the template ends within brackets")),
        _ => Ok(closes),
    }
}

/// Where filters go, by the offset in the source.
fn filters(tokens: &Tokens<'_>, closes: &[usize]) -> BTreeMap<usize, &'static str> {
    let mut filters = BTreeMap::new();
    for (at, (token, _)) in tokens.iter().enumerate() {
        let filter = match token {
            Token::Plus => ADDED,
            Token::Mul => MULTIPLIED,
            _ => continue,
        };
        // `*` behind a bracket or a comma stands for further arguments of a call.
        let Some(left) = at.checked_sub(1).filter(|&left| ends_operand(&tokens[left].0)) else { continue };
        for end in [Some(left), operand(tokens, closes, at + 1)].into_iter().flatten() {
            let (token, span) = &tokens[end];
            // A list is none of these, and what stands before them belongs to another operator.
            if matches!(
                token,
                Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_)
            ) {
                continue;
            }
            let there = filters.entry(span.end_offset as usize).or_insert(filter);
            // Of both, the one that lets less pass.
            if filter == MULTIPLIED {
                *there = filter;
            }
        }
    }
    filters
}

/// What variables are set to: from where, to where, and the filter.
fn assignments(tokens: &Tokens<'_>, closes: &[usize]) -> Vec<(usize, usize, &'static str)> {
    let mut found = Vec::new();
    for at in 1..tokens.len() {
        let [(Token::BlockStart, _), (Token::Ident("set"), _)] = &tokens[at - 1..=at] else { continue };
        let (mut assign, mut filter, mut next) = (None, SET, at + 1);
        while let Some((token, _)) = tokens.get(next).filter(|(token, _)| !matches!(token, Token::BlockEnd)) {
            match token {
                Token::Assign if assign.is_none() => assign = Some(next),
                Token::Dot if assign.is_none() => filter = SET_ATTRIBUTE,
                Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => next = closes[next],
                _ => {}
            }
            next += 1;
        }
        let Some(assign) = assign.filter(|assign| assign + 1 < next) else { continue };
        found.push((tokens[assign].1.end_offset as usize, tokens[next - 1].1.end_offset as usize, filter));
    }
    found
}

fn ends_operand(token: &Token<'_>) -> bool {
    use Token::*;
    matches!(
        token,
        Ident(_)
            | Str(_)
            | String(_)
            | Int(_)
            | Int128(_)
            | Float(_)
            | BracketClose
            | ParenClose
            | BraceClose
    )
}

/// The last token of the operand that begins at a token, with its attributes, items, arguments and filters.
fn operand(tokens: &Tokens<'_>, closes: &[usize], mut at: usize) -> Option<usize> {
    let token = |at: usize| tokens.get(at).map(|(token, _)| token);
    while matches!(token(at)?, Token::Minus) {
        at += 1;
    }
    let mut end = match token(at)? {
        Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => closes[at],
        _ => at,
    };
    while let Some(next) = token(end + 1) {
        match next {
            Token::Dot | Token::Pipe => end += 2,
            Token::ParenOpen | Token::BracketOpen => end = closes[end + 1],
            // Texts in a row are one.
            Token::Str(_) | Token::String(_) => end += 1,
            _ => break,
        }
    }
    tokens.get(end).is_some_and(|(token, _)| ends_operand(token)).then_some(end)
}
